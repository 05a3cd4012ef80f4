// One bug for each thing a sanitizer preset must find; the argument picks it. 'clean' has none, and
// starts and ends MPI where there is MPI, so that its own findings are known to be suppressed.
#include <climits>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>

#ifdef K25_PLANTED_MPI
#include <mpi.h>
#endif

namespace {

// Out of the optimiser's sight: it may neither remove a bug nor see it at compile time.
volatile int zero = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
int racy = 0;           // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

void use_mpi() {
#ifdef K25_PLANTED_MPI
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
#endif
}

void leak() {
  int* lost = new int[100];
  lost[zero] = 1;
  zero = lost[0] - 1;
}

int overflow() {
  const auto data = std::make_unique<int[]>(4);
  return data[4 + zero];
}

int undefined() {
  int top = INT_MAX - zero;
  return top + 1 + zero;
}

int race() {
  std::thread other([] { racy = 1; });
  racy = 2;
  other.join();
  return racy;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view which = argc > 1 ? argv[1] : "";
  if (which == "leak") {
    leak();
  } else if (which == "leak_beside_mpi") {
    use_mpi();
    leak();
  } else if (which == "overflow") {
    zero = overflow();
  } else if (which == "undefined") {
    zero = undefined();
  } else if (which == "race") {
    zero = race();
  } else if (which == "clean") {
    use_mpi();
  } else {
    return 2;
  }
  return EXIT_SUCCESS;
}
