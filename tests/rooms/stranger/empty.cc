// Nothing: the target that it belongs to fails before this is compiled.
