#include "trainer/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "data/io/h5_layout.h"
#include "kernels/core/device.h"
#include "parallel/comm/versions.h"
#include "parallel/placement/gather_texts.h"
#include "trainer/doctor/binding.h"
#include "trainer/doctor/gpus.h"
#include "trainer/doctor/host.h"
#include "trainer/doctor/places.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Finding> check_versions(const GpuHost& gpus) {
  std::string text = parallel::mpi_version() + ", HDF5 " + data::hdf5_version();
  if constexpr (kWithCuda) {
    text += ", " + cuda_versions() + ", NCCL " + parallel::nccl_version();
  } else {
    text += ", no CUDA in this build";
  }
  if (!gpus.driver.empty()) text += ", NVIDIA driver " + gpus.driver;
  return {{.topic = "versions", .found = text}};
}

void append(std::vector<Finding>& all, std::vector<Finding> more) {
  std::ranges::move(more, std::back_inserter(all));
}

/// In the order in which the ranks of this host take them.
std::vector<std::string> gpu_buses(const GpuHost& host) {
  std::vector<std::string> buses;
  if constexpr (kWithCuda) {
    for (const CudaDeviceId& id : cuda_device_ids()) buses.push_back(id.bus);
  } else {
    for (const GpuFacts& gpu : host.gpus) buses.push_back(gpu.bus);
  }
  return buses;
}

/// What the first rank of a host sees of it.
std::vector<Finding> examine_host(const std::vector<RankBinding>& ranks,
                                  const std::filesystem::path& run_dir) {
  const HostFiles files;
  GpuView view{.host = read_gpus("libnvidia-ml.so.1"), .built_for_gpus = kWithCuda};
  if constexpr (kWithCuda) view.visible = cuda_device_count();
  std::vector<Finding> all = check_kernel(files);
  append(all, check_versions(view.host));
  const std::vector<NumaNode> nodes = numa_nodes(files);
  append(all, check_numa(nodes));
  append(all, check_binding(ranks, nodes));
  append(all, check_gpus(files, view, ranks));
  append(all, describe_places(parallel::read_topology(), ranks, gpu_buses(view.host)));
  append(all, check_limits(files, host_limits(static_cast<int>(ranks.size()))));
  append(all, check_run_dir(run_dir));
  return all;
}

Json host_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& f : findings) list.push_back(to_json(f));
  return list;
}

}  // namespace

std::vector<Finding> examine(parallel::World& world, const std::filesystem::path& run_dir) {
  const std::string host = world.peer(world.rank()).host;
  const Json mine = {{"host", host}, {"cpus", cpus_of_process()}};
  std::vector<RankBinding> of_host;
  int rank = 0;
  for (const std::string& text :
       parallel::gather_texts(world.comm(), "doctor masks", mine.dump())) {
    const Json json = Json::parse(text);
    if (json.at("host") == host) of_host.push_back({rank, host, json.at("cpus")});
    ++rank;
  }
  const bool speaks = world.local_rank() == 0;
  const std::vector<Finding> seen =
      speaks ? examine_host(of_host, run_dir) : std::vector<Finding>{};
  const std::vector<std::string> texts =
      parallel::gather_texts(world.comm(), "doctor findings", host_json(seen).dump());
  std::vector<Finding> all;
  if (world.rank() != 0) return all;
  std::map<std::string, int> hosts;
  for (int r = 0; r < world.size(); ++r) ++hosts[world.peer(r).host];
  for (int r = 0; r < world.size(); ++r) {
    for (const Json& json : Json::parse(texts[static_cast<std::size_t>(r)])) {
      Finding f = finding_from(json);
      if (hosts.size() > 1) f.found = world.peer(r).host + ": " + f.found;
      all.push_back(std::move(f));
    }
  }
  return all;
}

}  // namespace k25::trainer
