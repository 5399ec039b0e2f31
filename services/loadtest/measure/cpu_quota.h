// The CPU time that a container is given.
#pragma once

#include <optional>
#include <string>

namespace baton::loadtest {

// Of this process's cgroup, as a container sees it.
inline constexpr char kCpuMaxPath[] = "/sys/fs/cgroup/cpu.max";

// Cores that the cgroup v2 file at `path` allows on average: "150000 100000", microseconds of CPU
// time per microseconds, are 1.5 (Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.max). Nothing
// without a limit ("max 100000"), without the file, or if it has another form.
std::optional<double> CpuQuota(const std::string& path);

}  // namespace baton::loadtest
