package broker

// murmur2 is Kafka's hash of a record key (org.apache.kafka.common.utils.Utils.murmur2: MurmurHash2, 32 bits, with Kafka's
// seed). Sharing it means that a native producer in the region puts a key into the same partition as we do.
func murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
	)
	h := uint32(seed) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := uint32(key[0]) | uint32(key[1])<<8 | uint32(key[2])<<16 | uint32(key[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h *= m
		h ^= k
	}
	if len(key) > 0 {
		for i := len(key) - 1; i >= 0; i-- {
			h ^= uint32(key[i]) << (8 * i)
		}
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

// partitionOf is the partition of n that a key belongs to: toPositive(murmur2(key)) % n in Kafka's built-in partitioner.
// Kafka clears the sign bit; it does not take the absolute value.
func partitionOf(key []byte, n int) int {
	return int(murmur2(key)&0x7fffffff) % n
}
