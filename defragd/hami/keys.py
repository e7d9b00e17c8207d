"""Every annotation and label key of HAMi that we read or write, once. Keys of one vendor are in `hami.vendors`."""

from __future__ import annotations

# -- pods, written by HAMi ------------------------------------------------------------------------------------------
BOOKED_NODE = "hami.io/vgpu-node"
"""The node on which HAMi's books count the pod (also mirrored as a label)."""
BOOKED_TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"

# -- pods, written by users -----------------------------------------------------------------------------------------
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
NUMA_BIND = "nvidia.com/numa-bind"
VGPU_MODE = "nvidia.com/vgpu-mode"
WEBHOOK_LABEL = "hami.io/webhook"
"""Label; the value ``ignore`` keeps HAMi's webhook away from a pod or a namespace."""
VNPU_MODE = "huawei.com/vnpu-mode"
METAX_QOS = "metax-tech.com/sgpu-qos-policy"
METAX_TOPOLOGY = "metax-tech.com/sgpu-topology-aware"
METAX_APP_CLASS = "metax-tech.com/sgpu-app-class"

# -- nodes ----------------------------------------------------------------------------------------------------------
NODE_LOCK = "hami.io/mutex.lock"
CAMBRICON_LOCK = "cambricon.com/dsmlu.lock"
DEVICE_CORDON = "hami.io/device-cordon"
NVIDIA_PAIR_SCORES = "hami.io/node-nvidia-score"
NVIDIA_HANDSHAKE = "hami.io/node-handshake"
VNPU_CORE_NODE = "hami-vnpu-core"
METAX_LOSSES = "metax-tech.com/gpu.topology.losses"
METAX_SCORES = "metax-tech.com/gpu.topology.scores"

# -- other schedulers' pods that HAMi does not count ----------------------------------------------------------------
VOLCANO_PREFIX = "volcano.sh/vgpu-"
SCHEDULER_NAME = "hami-scheduler"
