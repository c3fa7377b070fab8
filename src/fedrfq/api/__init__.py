"""What Python programs and notebooks use: `import fedrfq` names all of it."""
