"""What one card computes in a step: model, inputs, loss, optimizer, precision, and how many FLOPs that is."""
