// Command devices reads selectors or allocations as JSON and prints the verdicts of the allocator of kube-scheduler.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// A selector and the device that it reads.
type selector struct {
	Expression string             `json:"expression"`
	Driver     string             `json:"driver"`
	Device     resourceapi.Device `json:"device"`
}

type verdict struct {
	// "true", "false", "compile" or "runtime".
	Verdict string `json:"verdict"`
	Error   string `json:"error,omitempty"`
}

// A device in use; with capacity, a share of it.
type held struct {
	Driver   string                                         `json:"driver"`
	Pool     string                                         `json:"pool"`
	Device   string                                         `json:"device"`
	ShareID  string                                         `json:"shareID"`
	Capacity map[resourceapi.QualifiedName]resource.Quantity `json:"capacity"`
}

type allocation struct {
	Node    *v1.Node                     `json:"node"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Held    []held                       `json:"held"`
}

type outcome struct {
	// One per claim; null where the claims do not fit the node.
	Results []resourceapi.AllocationResult `json:"results"`
	// Fatal for the pod, or for the node alone.
	Error     string `json:"error,omitempty"`
	NodeError string `json:"nodeError,omitempty"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var found []*resourceapi.DeviceClass
	for _, class := range c {
		found = append(found, class)
	}
	return found, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := c[name]; found {
		return class, nil
	}
	return nil, errors.New("device class " + name + " does not exist")
}

func judge(each selector) verdict {
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(each.Expression, cel.Options{})
	if compiled.Error != nil {
		return verdict{"compile", compiled.Error.Detail}
	}
	device := cel.Device{
		Driver:                   each.Driver,
		AllowMultipleAllocations: each.Device.AllowMultipleAllocations,
		Attributes:               each.Device.Attributes,
		Capacity:                 each.Device.Capacity,
	}
	matches, _, err := compiled.DeviceMatches(context.Background(), device)
	if err != nil {
		return verdict{"runtime", err.Error()}
	}
	if matches {
		return verdict{"true", ""}
	}
	return verdict{"false", ""}
}

func allocate(each allocation) outcome {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, device := range each.Held {
		id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
		if device.ShareID == "" {
			state.AllocatedDevices.Insert(id)
			continue
		}
		share := types.UID(device.ShareID)
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &share))
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.Capacity))
	}
	known := classes{}
	for _, class := range each.Classes {
		known[class.Name] = class
	}
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	allocator, err := structured.NewAllocator(context.Background(), features, state, known, each.Slices, cache)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	results, err := allocator.Allocate(context.Background(), each.Node, each.Claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return outcome{NodeError: err.Error()}
	}
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return outcome{Results: results}
}

func main() {
	var input struct {
		Selectors   []selector   `json:"selectors"`
		Allocations []allocation `json:"allocations"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		panic(err)
	}
	verdicts, outcomes := make([]verdict, len(input.Selectors)), make([]outcome, len(input.Allocations))
	for index, each := range input.Selectors {
		verdicts[index] = judge(each)
	}
	for index, each := range input.Allocations {
		outcomes[index] = allocate(each)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"selectors": verdicts, "allocations": outcomes}); err != nil {
		panic(err)
	}
}
