package configs

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/sluicemq/sluice/broker/mqtt"
)

// door turns a listener into the door's options. Trusted entries that are no addresses become zero prefixes,
// which its validation refuses.
func (l Listener) door() mqtt.Listener {
	o := mqtt.Listener{Address: l.Address, Mode: fs.FileMode(l.Mode)}
	if t := l.TLS; t != nil {
		o.TLS = &mqtt.TLS{
			Cert: t.Cert, Key: t.Key, CA: t.CA, CRL: t.CRL,
			ClientAuth: mqtt.ClientAuth(t.ClientAuth), UserFrom: mqtt.UserFrom(t.UserFrom),
		}
	}
	if w := l.WebSocket; w != nil {
		o.WebSocket = &mqtt.WebSocket{Path: w.Path, Origins: w.Origins}
	}
	if p := l.ProxyProtocol; p != nil {
		o.ProxyProtocol = &mqtt.ProxyProtocol{}
		for _, text := range p.Trusted {
			o.ProxyProtocol.Trusted = append(o.ProxyProtocol.Trusted, parsePrefix(text))
		}
	}
	return o
}

// parsePrefix reads a network, or an address as a network of its own. The zero value is for what is neither.
func parsePrefix(text string) netip.Prefix {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Masked()
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())
}

// listeners checks each by itself, and that no address is given twice.
func (v *validation) listeners() {
	if len(v.MQTT.Listeners) == 0 {
		v.bad("mqtt.listeners", "is empty; give one address, such as localhost:1883")
	}
	v.length("mqtt.listeners", len(v.MQTT.Listeners), maxListeners)
	seen := make(map[string]bool)
	for i, l := range v.MQTT.Listeners {
		path := fmt.Sprintf("mqtt.listeners[%d]", i)
		if seen[l.Address] && !strings.HasSuffix(l.Address, ":0") {
			v.bad(path+".address", "%q is given twice; keep one", l.Address)
			continue
		}
		seen[l.Address] = true
		if l.DeniedPublish != "" {
			v.oneOf(path+".denied_publish", l.DeniedPublish, deniedPublish...)
		}
		problems := l.door().Validate()
		for _, err := range problems {
			v.bad(path+"."+err.Field, "%s", err.Message)
		}
		if len(problems) == 0 {
			v.exposed(path+".address", l)
		}
	}
}
