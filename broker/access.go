package broker

import (
	"github.com/sluicemq/sluice/broker/admission"
	"github.com/sluicemq/sluice/broker/auth"
)

const (
	leastArgonMemory = 8 << 20
	mostArgonMemory  = 64 << 20
)

// openAccess reads the password and the ACL file, if there are any, and has them read again when they change.
func (b *Broker) openAccess() error {
	o := b.o.Access
	if o.PasswordFile == "" && o.ACLFile == "" {
		return nil
	}
	access, warnings, err := OpenAccess(o)
	if err != nil {
		return &ConfigError{err.Error()}
	}
	b.warnAccess(warnings)
	b.lg.Info("access", "rules", access.Summary())
	b.o.MQTT.Access = access
	b.Watch("passwords and ACLs", []string{o.PasswordFile, o.ACLFile}, b.reloadAccess)
	return nil
}

// OpenAccess reads the files with what this machine has of memory in mind.
func OpenAccess(o auth.Options) (a *auth.Authenticator, warnings []string, err error) {
	if o.ArgonMemory == 0 {
		o.ArgonMemory = argonMemory(admission.FindMemory())
	}
	return auth.New(o)
}

// argonMemory is what the argon2 of one password may take on a machine.
func argonMemory(m admission.Memory) int64 {
	if m.Bytes <= 0 {
		return mostArgonMemory
	}
	return min(max(m.Bytes/4, leastArgonMemory), mostArgonMemory)
}

// reloadAccess has connected clients follow what the files say now.
func (b *Broker) reloadAccess() error {
	warnings, err := b.o.MQTT.Access.Load()
	if err != nil {
		return err
	}
	b.warnAccess(warnings)
	b.door.AccessChanged()
	b.lg.Info("access", "rules", b.o.MQTT.Access.Summary())
	return nil
}

func (b *Broker) warnAccess(warnings []string) {
	for _, w := range warnings {
		b.lg.Warn("access", "warning", w)
	}
}
