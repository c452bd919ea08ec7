"""What this machine is: its cards and their links (through NVML), its cores, and whether a run can start on it."""
