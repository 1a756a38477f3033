// Package record encodes and decodes Kafka's RecordBatch version 2, the one format in which messages are journaled,
// stored and mirrored.
//
// What a Builder or an Encoder wrote is a batch that Kafka's broker, clients and dump tool accept byte for byte.
// What the decoding side reads may come from a damaged disk or from a stranger: every length is checked before it is
// used, decompression is bounded, and bad input yields an error that names the batch, never a panic.
//
// Nothing here does I/O, starts goroutines or locks. Types that hold buffers (Builder, Decoder, Encoder) belong to one
// goroutine at a time; a Batch may be read by many as long as nobody changes its bytes.
package record
