"""The facts both ends of the wire share: messages, the state blob, input scripts. Imports nothing else of ours."""
