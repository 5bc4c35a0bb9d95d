"""The commands of kurirctl, by what they are about. Loaded one at a time: see `kurir.cli.root`."""
