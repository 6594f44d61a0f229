// Command podrequests reads a JSON array of pods and prints an array of their amounts, by the functions of kube-scheduler.
package main

import (
	"encoding/json"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// Amounts are in thousandths of cpu, and in units of everything else.
type amounts struct {
	Requests map[string]int64 `json:"requests"`
	Limits   map[string]int64 `json:"limits"`
	Scored   map[string]int64 `json:"scored"`
}

var scoreDefaults = v1.ResourceList{
	v1.ResourceCPU:    resource.MustParse("100m"),
	v1.ResourceMemory: resource.MustParse("200Mi"),
}

func plain(list v1.ResourceList) map[string]int64 {
	found := map[string]int64{}
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			found[string(name)] = quantity.MilliValue()
		} else {
			found[string(name)] = quantity.Value()
		}
	}
	return found
}

func of(pod *v1.Pod) amounts {
	options := helper.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	}
	requests := helper.PodRequests(pod, options)
	scored := options
	scored.NonMissingContainerRequests = v1.ResourceList{}
	for name, amount := range scoreDefaults {
		if _, found := requests[name]; !found || !helper.IsPodLevelRequestsSet(pod) {
			scored.NonMissingContainerRequests[name] = amount
		}
	}
	limits := helper.PodLimits(pod, helper.PodResourcesOptions{})
	return amounts{plain(requests), plain(limits), plain(helper.PodRequests(pod, scored))}
}

func main() {
	var pods []v1.Pod
	if err := json.NewDecoder(os.Stdin).Decode(&pods); err != nil {
		panic(err)
	}
	found := make([]amounts, len(pods))
	for index := range pods {
		found[index] = of(&pods[index])
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		panic(err)
	}
}
