package admission

import (
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v3/mem"
)

// Memory is what this process may use at most.
type Memory struct {
	// Bytes is the tightest limit found; 0 when nothing could be found out.
	Bytes int64
	// Source says where it stands: a cgroup's file, or "machine".
	Source string
}

// FindMemory looks for the tightest of the cgroup limits (version 2 or 1) of this process and the machine's memory.
func FindMemory() Memory {
	m := cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup")
	if v, err := mem.VirtualMemory(); err == nil && v.Total > 0 && v.Total < math.MaxInt64 {
		if total := int64(v.Total); m.Bytes == 0 || total < m.Bytes {
			m = Memory{Bytes: total, Source: "machine"}
		}
	}
	return m
}

// cgroupMemory reads the limits of the group that membership (/proc/self/cgroup) names and of every group above it; the
// kernel enforces all of them. In a container the group's path may be that of the host, which doesn't exist inside: then the
// mount's root is the group.
func cgroupMemory(membership, mount string) Memory {
	data, err := os.ReadFile(membership)
	if err != nil {
		return Memory{}
	}
	var tightest Memory
	consider := func(file string) {
		if n, ok := readLimit(file); ok && (tightest.Bytes == 0 || n < tightest.Bytes) {
			tightest = Memory{Bytes: n, Source: file}
		}
	}
	for line := range strings.Lines(string(data)) {
		// hierarchy:controllers:path; version 2 is hierarchy 0 without controllers (cgroups(7))
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root, names := mount, []string{"memory.max", "memory.high"}
		switch {
		case fields[0] == "0" && fields[1] == "":
		case hasController(fields[1], "memory"):
			root, names = path.Join(mount, "memory"), []string{"memory.limit_in_bytes"}
		default:
			continue
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			for _, name := range names {
				consider(path.Join(root, group, name))
			}
			if group == "/" {
				break
			}
		}
	}
	return tightest
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// readLimit reads a limit file. "max", and version 1's largest page-aligned number, mean that there is none.
func readLimit(file string) (int64, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n <= 0 || n >= math.MaxInt64-(1<<20) {
		return 0, false
	}
	return n, true
}
