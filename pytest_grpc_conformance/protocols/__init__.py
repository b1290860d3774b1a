"""Wire protocols: bindings, reference servicers, and translation to and from neutral requests and events."""
