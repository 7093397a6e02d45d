"""What this machine has: compilers, instruction sets, a CUDA driver with its cards, CUDA toolkits. Needs no torch."""
