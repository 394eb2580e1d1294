"""What carries messages: memory, https, flower. None of them is trusted."""
