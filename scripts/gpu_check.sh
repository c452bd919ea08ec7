#!/usr/bin/env bash
# Checks the CUDA side of this project on a machine with one GPU, in less than six minutes.
#
# Usage: scripts/gpu_check.sh FOLDER      (PYTHON=... names another interpreter; it needs a torch that sees the GPU)
#
# Runs the card's own checks, ResNet-50 and GPT in four precisions through the front door, and pytest -m gpu.
# FOLDER gets summary.md (one table), summary.json, every run folder and every log. Exit code: 0 if all of it passed.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: scripts/gpu_check.sh FOLDER}
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

"$python" -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else f"torch {torch.__version__} of {sys.executable} sees no CUDA card")'

# What the project needs beside torch; a bare machine has some of it. What is missing goes into FOLDER, not into the installation.
missing=$("$python" - <<'EOF'
from importlib.util import find_spec
needs = {"hydra": "hydra-core>=1.3.2,<1.4", "pydantic": "pydantic>=2.10", "rich": "rich>=13.9", "matplotlib": "matplotlib>=3.9", "yaml": "pyyaml>=6",
         "pynvml": "nvidia-ml-py>=12.560", "transformers": "transformers>=5.0", "pytest": "pytest>=9", "numpy": "numpy>=1.26"}
print("\n".join(requirement for module, requirement in needs.items() if find_spec(module) is None))
EOF
)
if [ -n "$missing" ]; then
  echo "installing into $folder/site: $(echo "$missing" | tr '\n' ' ')"
  echo "$missing" | "$python" -m pip install --quiet --disable-pip-version-check --target "$folder/site" --requirement /dev/stdin
  export PYTHONPATH="$folder/site${PYTHONPATH:+:$PYTHONPATH}"
fi

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" scripts/gpu_check.py "$folder"
