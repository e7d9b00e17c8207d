"""The test ground: a real control plane on loopback, an emulated kubelet and device plugin, a stand-in for HAMi."""
