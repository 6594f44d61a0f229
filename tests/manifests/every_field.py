"""One object of each of our kinds with every field it can have."""

from typing import Final

QUEUE: Final = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata:
  name: research
  annotations:
    volcano.sh/card.quota: '{"NVIDIA-H200": 8, "NVIDIA-H800/mps-80g*1/2": 6}'
    volcano.sh/hierarchy: root/research
    volcano.sh/hierarchy-weights: 1/2
spec:
  weight: 65535
  capability: {cpu: 4, memory: 4Gi, nvidia.com/gpu: "8"}
  deserved: {cpu: 3500m, memory: 1e9}
  guarantee:
    resource: {cpu: "2", memory: 2Gi}
  reclaimable: false
  priority: 80000
  parent: root
  affinity:
    nodeGroupAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: [a]
      preferredDuringSchedulingIgnoredDuringExecution: [b]
    nodeGroupAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: [c]
      preferredDuringSchedulingIgnoredDuringExecution: [d]
  extendClusters:
  - {name: other, weight: 3, capacity: {cpu: 64}}
  type: gpu
  dequeueStrategy: fifo
"""
QUEUE_STATUS: Final = """
state: Closing
pending: 1
inqueue: 2
running: 3
completed: 4
unknown: 5
allocated: {cpu: 1500m, memory: 1Gi, pods: "3"}
reservation: {nodes: [n1], resource: {cpu: "8"}}
"""
POD_GROUP: Final = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata:
  name: train
  annotations: {volcano.sh/card.request: '{"NVIDIA-H200": 16}', volcano.sh/service.type: training}
spec:
  minMember: 3
  minTaskMember: {master: 1, worker: 2}
  queue: research
  priorityClassName: high
  minResources: {cpu: "3", nvidia.com/gpu: 16, count/pods: "3", limits.cpu: 3}
  networkTopology: {mode: soft, highestTierAllowed: 2}
  subGroupPolicy:
  - name: pairs
    networkTopology: {mode: hard, highestTierName: rack}
    subGroupSize: 2
    minSubGroups: 1
    labelSelector:
      matchLabels: {a: b}
      matchExpressions: [{key: c, operator: In, values: [d]}]
    matchLabelKeys: [volcano.sh/task-index]
status:
  phase: Inqueue
  running: 1
  succeeded: 2
  failed: 3
  conditions:
  - type: Unschedulable
    status: "True"
    transitionID: 0b0d
    lastTransitionTime: "2026-01-02T03:04:05Z"
    reason: NotEnoughResources
    message: 3/3 tasks in gang unschedulable
"""
JOB: Final = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  schedulerName: capcard-sched
  minAvailable: 3
  queue: research
  maxRetry: 5
  minSuccess: 1
  ttlSecondsAfterFinished: 60
  priorityClassName: high
  runningEstimate: 2h
  plugins: {env: [], svc: [--disable-network-policy=true], pytorch: ["--master=master", "--worker=worker"]}
  policies:
  - {event: PodEvicted, action: RestartJob, timeout: 10s}
  - {events: [PodFailed, TaskFailed], action: AbortJob}
  - {exitCode: 137, action: RestartPod}
  networkTopology: {mode: hard, highestTierAllowed: 1}
  volumes:
  - {mountPath: /data, volumeClaimName: data}
  - mountPath: /scratch
    volumeClaim: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  tasks:
  - name: worker
    replicas: 2
    minAvailable: 2
    maxRetry: -1
    topologyPolicy: single-numa-node
    dependsOn: {name: [master], iteration: any}
    partitionPolicy:
      totalPartitions: 1
      partitionSize: 2
      minPartitions: 1
      networkTopology: {mode: soft, highestTierName: rack}
    policies: [{event: TaskCompleted, action: CompleteJob}]
    template:
      metadata: {labels: {app: train}, annotations: {volcano.sh/card.name: NVIDIA-H200|NVIDIA-H800}}
      spec:
        restartPolicy: Never
        containers:
        - name: main
          image: registry.example/main:1
          resources: {limits: {nvidia.com/gpu: 8}}
          somethingFromTheFuture: {kept: true}
"""
JOB_STATUS: Final = """
state: {phase: Running, reason: r, message: m, lastTransitionTime: "2026-01-02T03:04:05Z"}
minAvailable: 3
pending: 1
running: 2
succeeded: 3
failed: 4
terminating: 5
unknown: 6
taskStatusCount: {worker: {phase: {Running: 2}}}
version: 1
retryCount: 2
runningDuration: 3m
controlledResources: {plugin-svc: svc}
conditions: [{status: Running, lastTransitionTime: "2026-01-02T03:04:05Z"}]
"""
COMMAND: Final = """
apiVersion: bus.volcano.sh/v1alpha1
kind: Command
metadata: {name: close-research}
action: CloseQueue
target:
  apiVersion: scheduling.volcano.sh/v1beta1
  kind: Queue
  name: research
  uid: 00000000-0000-4000-8000-000000000001
  controller: true
  blockOwnerDeletion: true
reason: CommandIssued
message: maintenance
"""
CARD_BUDGET: Final = """
apiVersion: capcard-sched.io/v1alpha1
kind: CardBudget
metadata: {name: research-month}
spec:
  queue: research
  period: month
  cards: {NVIDIA-H200: 5000h, NVIDIA A100/mig-1g.10gb: 0h}
  whenSpent: stop
"""
CARD_BUDGET_STATUS: Final = """
observedGeneration: 1
periodStart: "2026-01-01T00:00:00Z"
periodEnd: "2026-02-01T00:00:00Z"
used: {NVIDIA-H200: 12.50h}
remaining: {NVIDIA-H200: 4987.50h}
spent: false
forecast: "2026-01-20T00:00:00Z"
conditions:
- {type: Spent, status: "False", reason: WithinBudget, message: none, lastTransitionTime: "2026-01-01T00:00:00Z"}
"""
HYPER_NODE: Final = """
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: spine-0}
spec:
  tier: 2
  tierName: spine
  members:
  - type: HyperNode
    selector:
      exactMatch: {name: leaf-0}
  - type: HyperNode
    selector:
      regexMatch: {pattern: '^leaf-[1-3]$'}
  - type: Node
    selector:
      labelMatch:
        matchLabels: {spine: "0"}
        matchExpressions:
        - {key: rack, operator: In, values: [a, b]}
"""
