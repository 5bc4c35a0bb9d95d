"""What `kurirctl doctor` looks at: one module for each kind of thing that can be wrong. Nothing is changed by it."""
