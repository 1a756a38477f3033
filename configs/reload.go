package configs

import "reflect"

// RestartFor lists the sections of a configuration that differ in what a running broker doesn't take up: everything but the log's
// level and the limits of connections.
func (c *Config) RestartFor(changed *Config) (sections []string) {
	next := *changed
	next.Log.Level = c.Log.Level
	next.MQTT.MaxConnections, next.MQTT.MaxPerAddress, next.MQTT.ConnectRate = c.MQTT.MaxConnections, c.MQTT.MaxPerAddress, c.MQTT.ConnectRate
	now, then := reflect.ValueOf(*c), reflect.ValueOf(next)
	for i := range now.NumField() {
		key := now.Type().Field(i).Tag.Get("yaml")
		if key != "" && !reflect.DeepEqual(now.Field(i).Interface(), then.Field(i).Interface()) {
			sections = append(sections, key)
		}
	}
	return sections
}
