// Package topics holds the rules of MQTT topic names and topic filters, and a
// tree that finds the subscriptions a topic matches (MQTT 5 §4.7, §4.8.2).
package topics
