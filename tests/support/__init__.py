"""What tests share: servers, clocks and builders that are as real as can be."""
