// Package nftables, in a copy of kube-proxy's: records what its tests feed to the proxy, the rules that it makes, and the
// flows that the tests expect, as JSON lines. It replaces functions that proxy_flows.py has renamed.
package nftables

import (
	"encoding/json"
	"flag"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"sigs.k8s.io/knftables"
)

var record = flag.String("record", "", "file for the events")
var encoder *json.Encoder
var fakes = map[*knftables.Fake]int{}
var proxiers = map[*Proxier]int{}

type event struct {
	// Proxier is zero for rules that no proxy made.
	Proxier int    `json:"proxier"`
	Kind    string `json:"kind"`
	Test    string `json:"test,omitempty"`
	Line    string `json:"line,omitempty"`
	// Object is a Service or EndpointSlice.
	Object   any       `json:"object,omitempty"`
	Settings *settings `json:"settings,omitempty"`
	// Rules are upstream's for the same state, as input for nft.
	Rules string `json:"rules,omitempty"`
	Flows []flow `json:"flows,omitempty"`
}

type settings struct {
	Family            string   `json:"family"`
	NodeName          string   `json:"nodeName"`
	NodeIP            string   `json:"nodeIP"`
	NodeIPs           []string `json:"nodeIPs"`
	NodePortAddresses []string `json:"nodePortAddresses"`
	// LocalDetector is what nftables matches pods of the node by.
	LocalDetector []string `json:"localDetector"`
	ServiceCIDRs  string   `json:"serviceCIDRs"`
	MasqueradeAll bool     `json:"masqueradeAll"`
}

type flow struct {
	Name     string `json:"name"`
	Source   string `json:"source"`
	Protocol string `json:"protocol"`
	Dest     string `json:"dest"`
	Port     int    `json:"port"`
	Output   string `json:"output"`
	Masq     bool   `json:"masq"`
}

func write(e event) {
	if encoder == nil {
		file, err := os.Create(*record)
		if err != nil {
			panic(err)
		}
		encoder = json.NewEncoder(file)
	}
	if err := encoder.Encode(e); err != nil {
		panic(err)
	}
}

func NewFakeProxier(ipFamily v1.IPFamily) (*knftables.Fake, *Proxier) {
	nft, proxier := upstreamNewFakeProxier(ipFamily)
	number := len(proxiers) + 1
	fakes[nft], proxiers[proxier] = number, number
	write(event{Proxier: number, Kind: "new", Test: caller()})
	return nft, proxier
}

// caller returns the name of the test function.
func caller() string {
	pc, _, _, _ := runtime.Caller(2)
	name := runtime.FuncForPC(pc).Name()
	return strings.Split(name[strings.LastIndex(name, "/")+1:], ".")[1]
}

func (proxier *Proxier) OnServiceUpdate(oldService, service *v1.Service) {
	if service == nil {
		write(event{Proxier: proxiers[proxier], Kind: "service-deleted", Object: oldService})
	} else {
		write(event{Proxier: proxiers[proxier], Kind: "service", Object: service})
	}
	proxier.upstreamOnServiceUpdate(oldService, service)
}

func (proxier *Proxier) OnEndpointSliceAdd(slice *discovery.EndpointSlice) {
	write(event{Proxier: proxiers[proxier], Kind: "slice", Object: slice})
	proxier.upstreamOnEndpointSliceAdd(slice)
}

func (proxier *Proxier) OnEndpointSliceUpdate(old, slice *discovery.EndpointSlice) {
	write(event{Proxier: proxiers[proxier], Kind: "slice", Object: slice})
	proxier.upstreamOnEndpointSliceUpdate(old, slice)
}

func (proxier *Proxier) OnEndpointSliceDelete(slice *discovery.EndpointSlice) {
	write(event{Proxier: proxiers[proxier], Kind: "slice-deleted", Object: slice})
	proxier.upstreamOnEndpointSliceDelete(slice)
}

func (proxier *Proxier) syncProxyRules() error {
	s := settings{
		Family:            string(proxier.ipFamily),
		NodeName:          proxier.nodeName,
		NodeIP:            proxier.nodeIP.String(),
		NodePortAddresses: strings.Fields(strings.Trim(proxier.nodePortAddresses.String(), "[]")),
		ServiceCIDRs:      proxier.serviceCIDRs,
		MasqueradeAll:     proxier.masqueradeAll,
	}
	addresses, _ := proxier.networkInterfacer.InterfaceAddrs()
	for _, address := range addresses {
		if ip := address.(*net.IPNet).IP; ip != nil && !ip.IsLoopback() {
			s.NodeIPs = append(s.NodeIPs, ip.String())
		}
	}
	if proxier.localDetector.IsImplemented() {
		s.LocalDetector = proxier.localDetector.IfLocalNFT()
	}
	err := proxier.upstreamSyncProxyRules()
	rules := proxier.nftables.(*knftables.Fake).Dump()
	write(event{Proxier: proxiers[proxier], Kind: "sync", Settings: &s, Rules: rules})
	return err
}

func runPacketFlowTests(t *testing.T, line string, nft *knftables.Fake, nodeIPs []string, cases []packetFlowTest) {
	flows := make([]flow, 0, len(cases))
	for _, c := range cases {
		protocol := string(c.protocol)
		if protocol == "" {
			protocol = string(v1.ProtocolTCP)
		}
		flows = append(flows, flow{c.name, c.sourceIP, protocol, c.destIP, c.destPort, c.output, c.masq})
	}
	position := strings.TrimSuffix(line[strings.LastIndex(line, "/")+1:], ")")
	write(event{Proxier: fakes[nft], Kind: "flows", Test: t.Name(), Line: position, Rules: nft.Dump(), Flows: flows})
	upstreamRunPacketFlowTests(t, line, nft, nodeIPs, cases)
}
