"""The guided tour: speculative decoding in eight steps, on a recorded run."""
