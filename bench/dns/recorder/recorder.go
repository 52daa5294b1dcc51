// Package kubernetes, in a copy of CoreDNS': records what its tests ask the plugin, the objects that it knows, and its
// replies, as JSON lines. It replaces functions that coredns_cases.py has renamed.
package kubernetes

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/etcd/msg"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/request"

	"github.com/miekg/dns"
	api "k8s.io/api/core/v1"
)

var record = flag.String("record", "", "file for the cases")
var encoder *json.Encoder

// inside is set while CoreDNS calls its own functions.
var inside bool

// labelCount is the number of recorded names of endpoints.
var labelCount int

type recorded struct {
	Test string `json:"test"`
	// Kind is "reply" to a query; "hosts" of a Service, by the plugin's inner function; or "servers" of the zone.
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Options options  `json:"options"`
	Objects *objects `json:"objects"`

	Rcode     string `json:"rcode"`
	Truncated bool   `json:"truncated"`
	Answer    []row  `json:"answer"`
	Authority []row  `json:"authority"`
	Extra     []row  `json:"extra"`
	Hosts     []host `json:"hosts"`
}

type row struct {
	Name string `json:"name"`
	TTL  uint32 `json:"ttl"`
	Type string `json:"type"`
	Data string `json:"data"`
}

type host struct {
	Host string `json:"host"`
	Port int    `json:"port"`
}

type options struct {
	Zones              []string `json:"zones"`
	Namespaces         []string `json:"namespaces"`
	Pods               string   `json:"pods"`
	LocalIPs           []string `json:"localIPs"`
	IgnoreEmptyService bool     `json:"ignoreEmptyService"`
	Zonal              bool     `json:"zonal"`
	Multicluster       bool     `json:"multicluster"`
	Synced             bool     `json:"synced"`
	EndpointPodNames   bool     `json:"endpointPodNames"`
	// External is set for functions of the plugin k8s_external.
	External bool `json:"external"`
}

// objects are those that CoreDNS could list, or found on its way to the answer.
type objects struct {
	Services   []*object.Service   `json:"services"`
	Endpoints  []*object.Endpoints `json:"endpoints"`
	Pods       []*object.Pod       `json:"pods"`
	Namespaces []string            `json:"namespaces"`
}

type recordingConn struct {
	dnsController
	seen objects
}

func (c *recordingConn) services(found []*object.Service) []*object.Service {
	c.seen.Services = append(c.seen.Services, found...)
	return found
}

func (c *recordingConn) endpoints(found []*object.Endpoints) []*object.Endpoints {
	c.seen.Endpoints = append(c.seen.Endpoints, found...)
	return found
}

func (c *recordingConn) ServiceList() []*object.Service {
	return c.services(c.dnsController.ServiceList())
}

func (c *recordingConn) SvcIndex(key string) []*object.Service {
	return c.services(c.dnsController.SvcIndex(key))
}

func (c *recordingConn) SvcIndexReverse(ip string) []*object.Service {
	return c.services(c.dnsController.SvcIndexReverse(ip))
}

func (c *recordingConn) EndpointsList() []*object.Endpoints {
	return c.endpoints(c.dnsController.EndpointsList())
}

func (c *recordingConn) EpIndex(key string) []*object.Endpoints {
	return c.endpoints(c.dnsController.EpIndex(key))
}

func (c *recordingConn) EpIndexReverse(ip string) []*object.Endpoints {
	return c.endpoints(c.dnsController.EpIndexReverse(ip))
}

func (c *recordingConn) PodIndex(ip string) []*object.Pod {
	found := c.dnsController.PodIndex(ip)
	c.seen.Pods = append(c.seen.Pods, found...)
	return found
}

func (c *recordingConn) GetNamespaceByName(name string) (*object.Namespace, error) {
	found, err := c.dnsController.GetNamespaceByName(name)
	if err == nil && found != nil {
		c.seen.Namespaces = append(c.seen.Namespaces, found.Name)
	}
	return found, err
}

// watched makes the plugin note the objects that it uses; nil for a controller with a client of its own.
func watched(k *Kubernetes) *recordingConn {
	if _, ok := k.APIConn.(*dnsControl); ok || inside || testName() == "" {
		return nil
	}
	conn := &recordingConn{dnsController: k.APIConn}
	conn.ServiceList()
	conn.EndpointsList()
	k.APIConn = conn
	inside = true
	return conn
}

func (c *recordingConn) write(k *Kubernetes, e recorded) {
	inside = false
	k.APIConn = c.dnsController
	e.Objects = &c.seen
	e.Options.Zones = k.Zones
	for name := range k.Namespaces {
		e.Options.Namespaces = append(e.Options.Namespaces, name)
	}
	slices.Sort(e.Options.Namespaces)
	e.Options.Pods = k.podMode
	for _, ip := range k.localIPs {
		e.Options.LocalIPs = append(e.Options.LocalIPs, ip.String())
	}
	e.Options.IgnoreEmptyService = k.opts.ignoreEmptyService
	e.Options.Zonal = k.opts.zonal
	e.Options.Multicluster = len(k.opts.multiclusterZones) > 0
	e.Options.Synced = c.HasSynced()
	e.Options.EndpointPodNames = k.endpointNameMode
	e.write()
}

func (e recorded) write() {
	e.Test = testName()
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

// testName returns the name of the test function; empty in a benchmark.
func testName() string {
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		name := frame.Function[strings.LastIndex(frame.Function, "/")+1:]
		if parts := strings.Split(name, "."); len(parts) > 1 && strings.HasPrefix(parts[1], "Test") {
			return parts[1]
		}
		if !more {
			return ""
		}
	}
}

func rows(records []dns.RR) []row {
	all := make([]row, 0, len(records))
	for _, record := range records {
		head := record.Header()
		data := strings.TrimPrefix(record.String(), head.String())
		all = append(all, row{head.Name, head.Ttl, dns.TypeToString[head.Rrtype], data})
	}
	return all
}

func (k Kubernetes) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	conn := watched(&k)
	if conn == nil {
		return k.upstreamServeDNS(ctx, w, r)
	}
	question := r.Question[0]
	rcode, err := k.upstreamServeDNS(ctx, w, r)
	e := recorded{Kind: "reply", Name: question.Name, Type: dns.TypeToString[question.Qtype]}
	if recorder, ok := w.(*dnstest.Recorder); ok && recorder.Msg != nil {
		reply := recorder.Msg
		e.Rcode, e.Truncated = dns.RcodeToString[reply.Rcode], reply.Truncated
		e.Answer, e.Authority, e.Extra = rows(reply.Answer), rows(reply.Ns), rows(reply.Extra)
	} else {
		e.Rcode = dns.RcodeToString[rcode]
	}
	conn.write(&k, e)
	return rcode, err
}

func (k *Kubernetes) Services(ctx context.Context, state request.Request, exact bool, opt plugin.Options) ([]msg.Service, error) {
	conn := watched(k)
	if conn == nil {
		return k.upstreamServices(ctx, state, exact, opt)
	}
	question := state.Req.Question[0]
	services, err := k.upstreamServices(ctx, state, exact, opt)
	e := recorded{Kind: "hosts", Name: question.Name, Type: dns.TypeToString[question.Qtype]}
	for _, service := range services {
		e.Hosts = append(e.Hosts, host{service.Host, service.Port})
	}
	conn.write(k, e)
	return services, err
}

func (k *Kubernetes) External(state request.Request, headless bool) ([]msg.Service, int) {
	conn := watched(k)
	if conn == nil {
		return k.upstreamExternal(state, headless)
	}
	services, rcode := k.upstreamExternal(state, headless)
	e := recorded{Kind: "hosts", Name: state.Name(), Type: "A", Rcode: dns.RcodeToString[rcode]}
	for _, service := range services {
		e.Hosts = append(e.Hosts, host{service.Host, service.Port})
	}
	e.Options.External = true
	conn.write(k, e)
	return services, rcode
}

func (k *Kubernetes) nsAddrs(external, headless bool, zone string) []dns.RR {
	conn := watched(k)
	if conn == nil {
		return k.upstreamNsAddrs(external, headless, zone)
	}
	records := k.upstreamNsAddrs(external, headless, zone)
	e := recorded{Kind: "servers", Name: zone, Type: "NS", Extra: rows(records)}
	e.Options.External = external
	conn.write(k, e)
	return records
}

// endpointHostname is the label of an endpoint: recorded as the name of the only endpoint of a headless Service.
func endpointHostname(addr object.EndpointAddress, endpointNameMode bool) string {
	label := upstreamEndpointHostname(addr, endpointNameMode)
	if inside || testName() != "TestEndpointHostname" {
		return label
	}
	labelCount++
	name, namespace, kind := fmt.Sprintf("svc%d", labelCount), "testns", "A"
	if strings.Contains(addr.IP, ":") {
		kind = "AAAA"
	}
	service := &object.Service{Name: name, Namespace: namespace, ClusterIPs: []string{api.ClusterIPNone}}
	endpoints := &object.Endpoints{
		Name:      name,
		Namespace: namespace,
		Index:     object.EndpointsKey(name, namespace),
		Subsets:   []object.EndpointSubset{{Addresses: []object.EndpointAddress{addr}}},
	}
	e := recorded{Kind: "hosts", Name: label + "." + name + "." + namespace + ".svc.cluster.local.", Type: kind}
	e.Hosts = []host{{Host: addr.IP}}
	e.Options = options{Zones: []string{"cluster.local."}, Pods: podModeDisabled, Synced: true, EndpointPodNames: endpointNameMode}
	e.Objects = &objects{Services: []*object.Service{service}, Endpoints: []*object.Endpoints{endpoints}}
	e.write()
	return label
}
