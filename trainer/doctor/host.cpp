#include "trainer/doctor/host.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "kernels/core/isa.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

std::int64_t soft_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return -1;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(limit.rlim_cur);
}

std::string size_text(Bytes bytes) {
  return fmt::format("{} bytes ({:.3f} GiB)", bytes.n, static_cast<double>(bytes.n) / 0x1p30);
}

/// A line "Name:   123 kB" of /proc/meminfo, in its own unit; -1 when it is missing.
std::int64_t meminfo(const HostFiles& files, const std::string& name) {
  std::ifstream in(files.at("proc/meminfo"));
  for (std::string key; in >> key;) {
    std::int64_t value = -1;
    in >> value;
    in.ignore(1 << 10, '\n');
    if (key == name + ":") return value;
  }
  return -1;
}

Finding huge_pages(const HostFiles& files) {
  const std::string policy = files.line("sys/kernel/mm/transparent_hugepage/enabled");
  const std::int64_t reserved = meminfo(files, "HugePages_Total");
  Finding f{
      .topic = "huge pages",
      .found = fmt::format("transparent: {}; reserved: {}", policy.empty() ? "not known" : policy,
                           std::max<std::int64_t>(0, reserved))};
  if (policy.find("[never]") == std::string::npos) return f;
  f.severity = Severity::kNote;
  f.consequence = "large host buffers are mapped in pages of 4 KiB, which costs host bandwidth";
  f.mend = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (root)";
  return f;
}

Finding open_files(const HostLimits& limits) {
  constexpr std::int64_t kEnough = 4096;
  Finding f{
      .topic = "open files",
      .found = limits.open_files < 0 ? "no limit" : fmt::format("at most {}", limits.open_files)};
  if (limits.open_files < 0 || limits.open_files >= kEnough) return f;
  f.severity = limits.open_files < 1024 ? Severity::kWarning : Severity::kNote;
  f.consequence =
      "each rank holds sockets to others, event files and checkpoint shards open; a job of "
      "many ranks runs out of descriptors";
  f.mend = "ulimit -n 65536 before mpirun, or nofile in limits.conf";
  return f;
}

Finding locked_memory(const HostFiles& files, const HostLimits& limits) {
  std::error_code none;
  const fs::path verbs = files.at("sys/class/infiniband");
  const bool network = fs::exists(verbs, none) && !fs::is_empty(verbs, none);
  Finding f{.topic = "memlock",
            .found = limits.memlock < 0 ? "ulimit -l: unlimited"
                                        : "ulimit -l: " + size_text(Bytes{limits.memlock})};
  if (limits.memlock < 0) return f;
  f.severity = network ? Severity::kWarning : Severity::kNote;
  f.consequence =
      network ? "InfiniBand cannot register its buffers beyond that: MPI and NCCL fail or fall "
                "back to sockets"
              : "memory locked beyond that is refused (asynchronous file access, a network "
                "card with RDMA)";
  f.mend = "ulimit -l unlimited (memlock in limits.conf, --ulimit memlock=-1 of a container)";
  return f;
}

Finding shared_memory(const HostLimits& limits) {
  const Bytes need{kShmOfRank.n * limits.local_ranks};
  Finding f{
      .topic = "/dev/shm",
      .found = fmt::format("{} free of {}; {} ranks need about {}", size_text(limits.shm_free),
                           size_text(limits.shm_size), limits.local_ranks, size_text(need))};
  if (limits.shm_free.n >= need.n) return f;
  f.severity = Severity::kWarning;
  f.consequence =
      "MPI and NCCL put the messages between ranks of a host there; when it is full they "
      "fail, or a rank dies by SIGBUS";
  f.mend = "a larger one: --shm-size=1g of the container, mount -o remount,size=1g /dev/shm (root)";
  return f;
}

/// The type of the file system that holds `path`, by the longest mount point above it.
std::string filesystem_of(const fs::path& path) {
  std::ifstream in("/proc/self/mounts");
  std::string best, type;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string device, point, kind;
    if (!(words >> device >> point >> kind)) continue;
    const bool above =
        point == "/" || path.string() == point || path.string().starts_with(point + "/");
    if (above && point.size() >= best.size()) {
      best = point;
      type = kind;
    }
  }
  return type;
}

Finding no_run_dir(const std::string& found, const std::string& mend) {
  return {.severity = Severity::kWarning,
          .topic = "run dir",
          .found = found,
          .consequence = "no run can begin there: k25 train ends with code 4",
          .mend = mend};
}

/// Why no folder can be made in `path`, or no file in it, which is there; nothing found when one
/// can.
Finding unusable(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  const std::string name = path.string();
  if (type == fs::file_type::not_found) {
    return no_run_dir(name + " is a link to nothing", "make what it names, or another run.dir");
  }
  if (type == fs::file_type::none) {
    return no_run_dir(fmt::format("{} cannot be looked at: {}", name, error.message()),
                      "open every folder above it to this user (chmod +x), or another run.dir");
  }
  if (type != fs::file_type::directory) {
    const bool file = type == fs::file_type::regular;
    return no_run_dir(
        fmt::format("{} is {}, and no folder", name, file ? "a file" : "a device, pipe or socket"),
        "a run.dir that is a folder, or does not exist yet");
  }
  if (::access(path.c_str(), R_OK | W_OK | X_OK) == 0) return {};
  return no_run_dir(
      fmt::format("{} cannot be read and written by this user: {}", name, std::strerror(errno)),
      "give this user the folder (chmod, chown), or another run.dir");
}

}  // namespace

std::string HostFiles::line(const std::string& path) const {
  std::ifstream in(at(path));
  std::string text;
  std::getline(in, text);
  return text;
}

std::vector<NumaNode> numa_nodes(const HostFiles& files) {
  std::vector<NumaNode> nodes;
  const fs::path folder = files.at("sys/devices/system/node");
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.find_first_not_of("0123456789", 4) != std::string::npos) {
      continue;
    }
    NumaNode node{.number = std::atoi(name.c_str() + 4)};
    const std::string relative = "sys/devices/system/node/" + name + "/";
    node.cpus = cpu_list(files.line(relative + "cpulist"));
    std::istringstream total(files.line(relative + "meminfo"));  // Node 0 MemTotal: 123 kB
    std::string word, number;
    std::int64_t kib = 0;
    if (total >> word >> number >> word >> kib) node.memory = Bytes{kib * 1024};
    nodes.push_back(node);
  }
  std::ranges::sort(nodes, {}, &NumaNode::number);
  return nodes;
}

HostLimits host_limits(int local_ranks) {
  HostLimits limits{.memlock = soft_limit(RLIMIT_MEMLOCK),
                    .open_files = soft_limit(RLIMIT_NOFILE),
                    .local_ranks = local_ranks};
  struct statvfs shm{};
  if (statvfs("/dev/shm", &shm) == 0) {
    const auto block = static_cast<std::int64_t>(shm.f_frsize);
    limits.shm_free = Bytes{static_cast<std::int64_t>(shm.f_bavail) * block};
    limits.shm_size = Bytes{static_cast<std::int64_t>(shm.f_blocks) * block};
  }
  return limits;
}

std::vector<Finding> check_kernel(const HostFiles& files) {
  utsname name{};
  uname(&name);
  std::vector<Finding> found = {
      {.topic = "kernel",
       .found = fmt::format("{} {} {}", name.sysname, name.release, name.machine)}};
  Finding isa{.topic = "cpu",
              .found = fmt::format("instruction set {}", cpu_isa_name(detect_cpu_isa()))};
  if (detect_cpu_isa() == CpuIsa::kV1) {
    isa.severity = Severity::kNote;
    isa.consequence = "no AVX2: CPU code runs several times slower";
    isa.mend = "another machine, or a virtual machine that passes the CPU's features on";
  }
  found.push_back(isa);
  if (files.line("proc/sys/kernel/numa_balancing") == "1") {
    found.push_back({.severity = Severity::kNote,
                     .topic = "numa",
                     .found = "the kernel moves pages between NUMA nodes (numa_balancing is 1)",
                     .consequence = "page faults and copies in the middle of a step",
                     .mend = "sysctl kernel.numa_balancing=0 (root), or bind ranks to nodes"});
  }
  return found;
}

std::vector<Finding> check_numa(const std::vector<NumaNode>& nodes) {
  if (nodes.empty()) {
    return {{.severity = Severity::kNote,
             .topic = "numa",
             .found = "the kernel shows no NUMA nodes",
             .consequence = "whether a rank is near its memory and its GPU cannot be said",
             .mend = "let the container see /sys/devices/system/node"}};
  }
  std::string text;
  for (const NumaNode& node : nodes) {
    text += fmt::format("{}node {}: cpus {}, {}", text.empty() ? "" : "; ", node.number,
                        cpu_list_text(node.cpus), size_text(node.memory));
  }
  return {{.topic = "numa", .found = text}};
}

std::vector<Finding> check_limits(const HostFiles& files, const HostLimits& limits) {
  return {locked_memory(files, limits), shared_memory(limits), huge_pages(files),
          open_files(limits)};
}

std::vector<Finding> check_run_dir(const fs::path& run_dir) {
  std::error_code none;
  const fs::path wanted = fs::absolute(run_dir, none).lexically_normal();
  fs::path path = wanted;
  // What stands there or, when nothing does, what stands above it.
  while (fs::symlink_status(path, none).type() == fs::file_type::not_found &&
         path.has_relative_path()) {
    path = path.parent_path();
  }
  if (const Finding f = unusable(path); !f.found.empty()) return {f};
  path = fs::canonical(path, none);
  const std::string type = filesystem_of(path);
  if (type == "proc" || type == "sysfs" || type.starts_with("cgroup")) {
    return {no_run_dir(fmt::format("{} is on {}, which keeps no files", path.string(), type),
                       "a run.dir on a disk")};
  }
  const fs::space_info space = fs::space(path, none);
  Finding f{
      .topic = "run dir",
      .found = fmt::format(
          "{} is on {}, {} free", path.string(), type.empty() ? "an unknown file system" : type,
          none ? "?" : size_text(Bytes{static_cast<std::int64_t>(space.available)}))};
  if (type == "tmpfs" || type == "ramfs") {
    f.severity = Severity::kWarning;
    f.consequence = "checkpoints take host memory and are gone after a restart";
    f.mend = "a run.dir on a disk";
  } else if (type == "overlay") {
    f.severity = Severity::kNote;
    f.consequence = "it is a container's own layer: checkpoints go when the container goes";
    f.mend = "a run.dir on a mounted volume";
  } else if (type.starts_with("nfs")) {
    f.severity = Severity::kNote;
    f.consequence =
        "checkpoints move at the speed of the network, and the lock on the run directory "
        "needs NFS locking";
    f.mend = "a parallel file system, or checkpoint.asynchronous: true (the default)";
  }
  return {f};
}

}  // namespace k25::trainer
