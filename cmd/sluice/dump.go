package main

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

var dumpCommand = subcommand{
	name: "dump", arguments: []string{"DIR"}, help: "Print what a data directory holds, also while a broker uses it.",
	new: func(f *pflag.FlagSet) runner {
		var w dumpFlags
		format := choose(f, "format", "output `FORMAT`: text; json: one object a line for each batch; hex: each record's value in hexadecimal, one a line",
			"text", "json", "hex")
		f.StringVar(&w.topic, "topic", "", "only the topic `NAME`")
		f.StringVar(&w.partition, "partition", "", "only partition `N` of it")
		f.StringVar(&w.offset, "offset", "", "only offsets `FROM[:TO]`, both included; either may be left out")
		f.StringVar(&w.since, "since", "", "only records of this `TIME` and later: 2026-11-30T14:00:00Z, or back from now: 90m")
		f.StringVar(&w.until, "until", "", "only records before this `TIME`, written like that of --since")
		return func(o output, args []string) error { return dump(o, args[0], *format, w) }
	},
}

// errDamaged is why a dump ends with exit code 1 although all of the directory was read.
var errDamaged = errors.New("the data directory is damaged; what could be read was printed; sluice verify says more, and sluice repair or the next start of the broker sets damaged parts aside")

// dump prints batches and records in order of their offsets, a partition at a time. What can't be read is said on stderr.
func dump(o output, dir, format string, w dumpFlags) error {
	selected, err := w.selection(time.Now())
	if err != nil {
		return usageError{fmt.Errorf("%w; see sluice dump --help", err)}
	}
	view, err := segment.OpenView(dir)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	out := bufio.NewWriterSize(o.out, 64<<10)
	p := newPrinter(format, out)
	err = dumpView(view, selected, p, o.err)
	if flushErr := out.Flush(); err == nil {
		err = flushErr
	}
	return err
}

func dumpView(view *segment.View, wanted selection, p printer, stderr io.Writer) error {
	damaged := false
	complain := func(what any) {
		damaged = true
		fmt.Fprintf(stderr, "sluice: damage: %v\n", what)
	}
	partitions, err := view.Partitions()
	if err == nil {
		partitions, err = wanted.choose(partitions)
	}
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	decoder := record.NewDecoder(0)
	for _, partition := range partitions {
		err := view.Select(partition, wanted.batches(), func(b record.Batch, at segment.Place) error {
			verdict := b.Verify()
			if verdict != nil {
				complain(fmt.Sprintf("%s at %s: %v", partition, place(at), verdict))
			}
			err := printBatch(p, &wanted, decoder, partition, at, b, verdict)
			var corrupt *record.CorruptError
			if errors.As(err, &corrupt) {
				complain(fmt.Sprintf("%s at %s: %v", partition, place(at), err))
				return nil
			}
			return err
		}, func(damage *segment.DamageError) error {
			complain(damage)
			return nil
		})
		if err != nil {
			return fmt.Errorf("dump %s: %w", partition, err)
		}
	}
	damages, err := view.Damages()
	for _, damage := range damages {
		complain(damage)
	}
	if err == nil && damaged {
		err = errDamaged
	}
	return err
}

// printBatch prints a batch with its wanted records, and nothing if none is. A *record.CorruptError says what of it can't
// be decoded; the rest is printed then.
func printBatch(p printer, wanted *selection, d *record.Decoder, partition segment.ViewPartition, at segment.Place, b record.Batch, verdict error) error {
	begun := false
	begin := func() error {
		begun = true
		return p.batch(partition, at, b, verdict)
	}
	if wanted.all() { // also when no record of it can be decoded
		if err := begin(); err != nil {
			return err
		}
	}
	err := d.Records(b, func(r *record.Record) error {
		if !wanted.has(r) {
			return nil
		}
		if !begun {
			if err := begin(); err != nil {
				return err
			}
		}
		return p.record(r)
	})
	if begun {
		if err := p.end(); err != nil {
			return err
		}
	}
	return err
}

func place(at segment.Place) string {
	if at.Position < 0 {
		return at.Path
	}
	return at.Path + ":" + strconv.FormatInt(at.Position, 10)
}

// printer writes one format. For each batch: batch, then record for each of its records, then end.
type printer interface {
	batch(p segment.ViewPartition, at segment.Place, b record.Batch, verdict error) error
	record(r *record.Record) error
	end() error
}

func newPrinter(format string, w io.Writer) printer {
	switch format {
	case "json":
		return &jsonPrinter{encoder: json.NewEncoder(w)}
	case "hex":
		return &hexPrinter{w: w}
	}
	return &textPrinter{w: w}
}

// hexPrinter writes values only. A null value is an empty line, as an empty one is.
type hexPrinter struct {
	w    io.Writer
	line []byte
}

func (*hexPrinter) batch(segment.ViewPartition, segment.Place, record.Batch, error) error { return nil }
func (*hexPrinter) end() error                                                            { return nil }

func (p *hexPrinter) record(r *record.Record) error {
	p.line = append(hex.AppendEncode(p.line[:0], r.Value), '\n')
	_, err := p.w.Write(p.line)
	return err
}

// textPrinter is for people. Text of clients is quoted: it may hold what a terminal would obey.
type textPrinter struct{ w io.Writer }

func (p *textPrinter) batch(part segment.ViewPartition, at segment.Place, b record.Batch, verdict error) error {
	crc := "crc ok"
	if verdict != nil {
		crc = "CRC BAD"
	}
	_, err := fmt.Fprintf(p.w, "%s offsets %d-%d: %d records, %d bytes, %v, %s, %s\n",
		part, b.BaseOffset(), b.LastOffset(), b.Count(), len(b), b.Codec(), crc, place(at))
	return err
}

func (p *textPrinter) record(r *record.Record) error {
	line := fmt.Appendf(nil, "  %d %s key=%s value=%s", r.Offset, timestamp(r.Timestamp), quote(r.Key), quote(r.Value))
	for _, h := range r.Headers {
		if e, ok := envelope(h); ok {
			line = fmt.Appendf(line, " qos=%d client=%q", e.QoS, e.ClientID)
			if e.Retain {
				line = append(line, " retain"...)
			}
			if e.HasExpiry {
				line = fmt.Appendf(line, " expiry=%ds", e.ExpirySeconds)
			}
			continue
		}
		line = fmt.Appendf(line, " %s=%s", strconv.Quote(h.Key), quote(h.Value))
	}
	_, err := p.w.Write(append(line, '\n'))
	return err
}

func (*textPrinter) end() error { return nil }

func quote(b []byte) string {
	if b == nil {
		return "null"
	}
	return strconv.QuoteToASCII(string(b))
}

func timestamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

func envelope(h record.Header) (record.Envelope, bool) {
	if h.Key != record.EnvelopeKey {
		return record.Envelope{}, false
	}
	e, err := record.ParseEnvelope(h.Value)
	return e, err == nil
}

// jsonPrinter is for programs: one object a line for each batch, with its records.
type jsonPrinter struct {
	encoder *json.Encoder
	current jsonBatch
}

type jsonBatch struct {
	Topic      string       `json:"topic"`
	Partition  int32        `json:"partition"`
	File       string       `json:"file"` // or journal
	Position   int64        `json:"position"`
	BaseOffset int64        `json:"base_offset"`
	LastOffset int64        `json:"last_offset"`
	Bytes      int          `json:"bytes"`
	Codec      string       `json:"compression"`
	CRC        string       `json:"crc"` // ok, or what is wrong
	Records    []jsonRecord `json:"records"`
}

// jsonRecord: bytes that are not UTF-8 are in the field with _base64 instead. A null has neither.
type jsonRecord struct {
	Offset      int64        `json:"offset"`
	Timestamp   int64        `json:"timestamp_ms"`
	Key         *string      `json:"key,omitempty"`
	KeyBase64   string       `json:"key_base64,omitempty"`
	Value       *string      `json:"value,omitempty"`
	ValueBase64 string       `json:"value_base64,omitempty"`
	MQTT        *jsonMQTT    `json:"mqtt,omitempty"`
	Headers     []jsonHeader `json:"headers,omitempty"`
}

type jsonMQTT struct {
	QoS         byte    `json:"qos"`
	Retain      bool    `json:"retain"`
	Client      string  `json:"client"`
	Incarnation uint32  `json:"incarnation"`
	Expiry      *uint32 `json:"expiry_s,omitempty"`
}

type jsonHeader struct {
	Key         string  `json:"key"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 string  `json:"value_base64,omitempty"`
}

func (p *jsonPrinter) batch(part segment.ViewPartition, at segment.Place, b record.Batch, verdict error) error {
	crc := "ok"
	if verdict != nil {
		crc = verdict.Error()
	}
	p.current = jsonBatch{
		Topic: part.Topic, Partition: part.ID, File: at.Path, Position: at.Position,
		BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Bytes: len(b), Codec: b.Codec().String(), CRC: crc,
		Records: p.current.Records[:0],
	}
	return nil
}

func (p *jsonPrinter) record(r *record.Record) error {
	j := jsonRecord{Offset: r.Offset, Timestamp: r.Timestamp}
	j.Key, j.KeyBase64 = textOrBase64(r.Key)
	j.Value, j.ValueBase64 = textOrBase64(r.Value)
	for _, h := range r.Headers {
		if e, ok := envelope(h); ok {
			j.MQTT = &jsonMQTT{QoS: e.QoS, Retain: e.Retain, Client: string(e.ClientID), Incarnation: e.Incarnation}
			if e.HasExpiry {
				j.MQTT.Expiry = &e.ExpirySeconds
			}
			continue
		}
		header := jsonHeader{Key: string([]byte(h.Key))} // a copy: the record is valid only here
		header.Value, header.ValueBase64 = textOrBase64(h.Value)
		j.Headers = append(j.Headers, header)
	}
	p.current.Records = append(p.current.Records, j)
	return nil
}

func (p *jsonPrinter) end() error { return p.encoder.Encode(&p.current) }

func textOrBase64(b []byte) (text *string, encoded string) {
	switch {
	case b == nil:
		return nil, ""
	case utf8.Valid(b):
		s := string(b)
		return &s, ""
	}
	return nil, base64.StdEncoding.EncodeToString(b)
}
