"""Learning of classes that others hold, from statistics on a public feature map."""
