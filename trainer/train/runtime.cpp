#include "trainer/train/runtime.h"

#include <sched.h>

#include <cstdlib>

#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

int cores_in_affinity_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

void warn_about_openmp(std::vector<std::string>& warnings) {
  for (const char* name : {"OMP_NUM_THREADS", "OMP_PROC_BIND"}) {
    if (const char* value = std::getenv(name)) {
      warnings.push_back(std::string(name) + "=" + value +
                         " has no effect here: threads are set by run.cpu_threads");
    }
  }
}

int thread_count(const Config& config, std::vector<std::string>& warnings) {
  const auto wanted = static_cast<int>(config.run.cpu_threads);
  const int cores = cores_in_affinity_mask();
  if (wanted <= cores) return wanted;
  warnings.push_back("the affinity mask has " + std::to_string(cores) +
                     (cores == 1 ? " core" : " cores") + ", cpu_threads reduced " +
                     std::to_string(wanted) + "->" + std::to_string(cores) +
                     "; use mpirun --bind-to none or --map-by slot:PE=" + std::to_string(wanted));
  return cores;
}

}  // namespace

Runtime::Runtime(parallel::World& world, const Config& config, std::vector<std::string>& warnings)
    : world_(world), mesh_(world, config.mesh) {
  warn_about_openmp(warnings);
  const int threads = thread_count(config, warnings);
  if (threads > 1) threads_ = std::make_unique<ThreadPool>(threads);
  parallel::collectively(world.comm(), "instruction set", [&] { context_.isa = detect_cpu_isa(); });
  context_.threads = threads_.get();
}

std::string Runtime::fingerprint() const {
  const int threads = context_.threads == nullptr ? 1 : context_.threads->num_threads();
  return "cpu=" + std::string(cpu_isa_name(context_.isa)) + " threads=" + std::to_string(threads) +
         " compiler=" + __VERSION__;
}

}  // namespace k25::trainer
