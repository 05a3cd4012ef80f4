// Every collective against values computed here, at several chunk sizes, with and without
// comm.check.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

struct Setting {
  std::int64_t max_chunk;
  bool check;
};

const std::vector<std::int64_t> kSizes = {0, 1, 3, 1023, 1024, 1025, 2048, 5001};
constexpr std::int64_t kGuard = 64;
constexpr char kUntouched = 0x5a;

char pattern(std::int64_t from, std::int64_t to, std::int64_t i) {
  return static_cast<char>(from * 131 + to * 17 + i * 7 + i / 256);
}

/// Bytes with a guard band on both sides.
class Guarded {
 public:
  explicit Guarded(std::int64_t size)
      : size_(size), bytes_(static_cast<std::size_t>(size + 2 * kGuard), kUntouched) {}
  char* data() { return bytes_.data() + kGuard; }
  bool intact() const {
    for (std::int64_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kUntouched || bytes_[kGuard + size_ + i] != kUntouched) return false;
    }
    return true;
  }

 private:
  std::int64_t size_;
  std::vector<char> bytes_;
};

class Collectives : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    WorldOptions options;
    options.timeout = std::chrono::seconds(30);
    options.max_chunk = Bytes{GetParam().max_chunk};
    options.check = GetParam().check;
    test_world().configure(options);
  }
  static Communicator& comm() { return test_world().comm(); }
  static int rank() { return comm().rank(); }
  static int size() { return comm().size(); }
};

INSTANTIATE_TEST_SUITE_P(Settings, Collectives,
                         testing::Values(Setting{std::int64_t{1} << 30, false},
                                         Setting{1024, false}, Setting{1024, true},
                                         Setting{61, true}),
                         [](const auto& test) {
                           return "chunk" + std::to_string(test.param.max_chunk) +
                                  (test.param.check ? "checked" : "");
                         });

TEST_P(Collectives, AllGather) {
  for (const std::int64_t n : kSizes) {
    Guarded buffer(n * size());
    for (std::int64_t i = 0; i < n; ++i) buffer.data()[rank() * n + i] = pattern(rank(), 0, i);
    comm().all_gather({"gather"}, {buffer.data(), Bytes{n}}).wait();
    for (int r = 0; r < size(); ++r) {
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(buffer.data()[r * n + i], pattern(r, 0, i)) << n << ' ' << r << ' ' << i;
      }
    }
    EXPECT_TRUE(buffer.intact()) << n;
  }
}

TEST_P(Collectives, AllToAll) {
  for (const std::int64_t n : kSizes) {
    std::vector<char> send(static_cast<std::size_t>(n * size() + 1));
    Guarded recv(n * size());
    for (int d = 0; d < size(); ++d) {
      for (std::int64_t i = 0; i < n; ++i) send[d * n + i] = pattern(rank(), d, i);
    }
    comm().all_to_all({"exchange"}, {send.data(), recv.data(), Bytes{n}}).wait();
    for (int s = 0; s < size(); ++s) {
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(recv.data()[s * n + i], pattern(s, rank(), i)) << n << ' ' << s << ' ' << i;
      }
    }
    EXPECT_TRUE(recv.intact()) << n;
  }
}

TEST_P(Collectives, AllToAllVWithUnequalAndZeroSizes) {
  const auto length = [](int from, int to) { return std::int64_t{(from * 3 + to * 5) % 4} * 517; };
  std::vector<Bytes> send_offsets, send_sizes, recv_offsets, recv_sizes;
  std::int64_t out = 0, in = 5;  // a gap before each block that arrives
  for (int r = 0; r < size(); ++r) {
    send_offsets.push_back(Bytes{out});
    send_sizes.push_back(Bytes{length(rank(), r)});
    out += length(rank(), r);
    recv_offsets.push_back(Bytes{in});
    recv_sizes.push_back(Bytes{length(r, rank())});
    in += length(r, rank()) + 5;
  }
  std::vector<char> send(static_cast<std::size_t>(out + 1));
  for (int r = 0; r < size(); ++r) {
    for (std::int64_t i = 0; i < length(rank(), r); ++i) {
      send[send_offsets[r].n + i] = pattern(rank(), r, i);
    }
  }
  Guarded recv(in);
  std::fill(recv.data(), recv.data() + in, kUntouched);
  // The spans may go as soon as the call has returned.
  Work work;
  {
    auto so = send_offsets, ss = send_sizes, ro = recv_offsets, rs = recv_sizes;
    work = comm().all_to_all_v({"route"}, {send.data(), so, ss, recv.data(), ro, rs});
    for (auto* copy : {&so, &ss, &ro, &rs}) copy->assign(copy->size(), Bytes{-1});
  }
  work.wait();
  std::vector<char> expected(static_cast<std::size_t>(in), kUntouched);
  for (int r = 0; r < size(); ++r) {
    for (std::int64_t i = 0; i < length(r, rank()); ++i) {
      expected[recv_offsets[r].n + i] = pattern(r, rank(), i);
    }
  }
  EXPECT_EQ(std::vector<char>(recv.data(), recv.data() + in), expected);
  EXPECT_TRUE(recv.intact());
}

TEST_P(Collectives, BroadcastFromEveryRank) {
  for (int root = 0; root < size(); ++root) {
    for (const std::int64_t n : kSizes) {
      Guarded data(n);
      for (std::int64_t i = 0; i < n && rank() == root; ++i) data.data()[i] = pattern(root, 1, i);
      comm().broadcast({"spread"}, {data.data(), Bytes{n}, root}).wait();
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(data.data()[i], pattern(root, 1, i));
      EXPECT_TRUE(data.intact());
    }
  }
}

TEST_P(Collectives, RingExchange) {
  const int previous = (rank() + size() - 1) % size();
  for (const std::int64_t n : kSizes) {
    std::vector<char> send(static_cast<std::size_t>(n + 1));
    Guarded recv(n);
    for (std::int64_t i = 0; i < n; ++i) send[i] = pattern(rank(), 2, i);
    comm().ring_exchange({"ring"}, {send.data(), recv.data(), Bytes{n}}).wait();
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(recv.data()[i], pattern(previous, 2, i));
    EXPECT_TRUE(recv.intact());
  }
}

TEST_P(Collectives, AllReduceSmallFoldsInRankOrder) {
  // The sum depends on the order: 1e16 swallows 1, unless its negative comes first.
  const std::vector<double> of_rank = {1.0, 1e16, -1e16, 3.0};
  double forward = of_rank[0], backward = of_rank[size() - 1];
  for (int r = 1; r < size(); ++r) forward += of_rank[r];
  for (int r = size() - 2; r >= 0; --r) backward += of_rank[r];
  if (size() == 3) {
    ASSERT_NE(forward, backward);
  }

  std::vector<double> values = {of_rank[rank()], static_cast<double>(rank())};
  AllReduceSmall sum;
  sum.values = values.data();
  sum.count = 2;
  comm().all_reduce_small({"sum"}, sum).wait();
  EXPECT_EQ(values[0], forward);
  EXPECT_EQ(values[1], size() * (size() - 1) / 2.0);

  const auto reduced = [&](ReduceOp op, std::int64_t mine) {
    AllReduceSmall args;
    args.integers = &mine;
    args.count = 1;
    args.op = op;
    comm().all_reduce_small({"integers"}, args).wait();
    return mine;
  };
  EXPECT_EQ(reduced(ReduceOp::kMax, rank() - 2), size() - 3);
  EXPECT_EQ(reduced(ReduceOp::kMin, 2 - rank()), 3 - size());
  EXPECT_EQ(reduced(ReduceOp::kBitOr, std::int64_t{1} << (rank() + 40)),
            ((std::int64_t{1} << size()) - 1) << 40);
  EXPECT_EQ(reduced(ReduceOp::kSum, std::int64_t{1} << 60), size() * (std::int64_t{1} << 60));

  // A NaN on any rank reaches all.
  double worst = rank() == size() - 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  AllReduceSmall max;
  max.values = &worst;
  max.count = 1;
  max.op = ReduceOp::kMax;
  comm().all_reduce_small({"max"}, max).wait();
  EXPECT_TRUE(worst != worst);

  AllReduceSmall nothing;
  comm().all_reduce_small({"nothing"}, nothing).wait();
}

/// Contributions whose fp32 sum depends on the order.
float contribution(int rank, int slice, std::int64_t i) {
  const std::vector<float> of_rank = {1.5f, 1e8f, -1e8f, 0.7f};
  return of_rank[static_cast<std::size_t>(rank)] * static_cast<float>(1 + i % 5) +
         static_cast<float>(slice);
}

/// What rank `me` must hold: ((start + rank 0) + rank 1) + ...
std::vector<float> ordered_result(int size, int slice, std::int64_t n, float start) {
  std::vector<float> acc(static_cast<std::size_t>(n), start);
  for (int r = 0; r < size; ++r) {
    for (std::int64_t i = 0; i < n; ++i) acc[i] = acc[i] + contribution(r, slice, i);
  }
  return acc;
}

std::vector<float> reduce(ReduceMode mode, const std::vector<int>& owners, int slices,
                          std::int64_t n, float start) {
  Communicator& comm = test_world().comm();
  std::vector<float> input(static_cast<std::size_t>(slices * n + 1));
  for (int s = 0; s < slices; ++s) {
    for (std::int64_t i = 0; i < n; ++i) input[s * n + i] = contribution(comm.rank(), s, i);
  }
  std::vector<float> acc(static_cast<std::size_t>(n), start);
  std::vector<float> scratch(static_cast<std::size_t>(comm.size() * n + 1));
  ReduceScatter args;
  args.input = input.data();
  args.accumulator = acc.data();
  args.per_slice = Elems{n};
  args.scratch = mode == ReduceMode::kOrdered ? scratch.data() : nullptr;
  args.mode = mode;
  args.slice_of_rank = owners;
  comm.reduce_scatter({"gradients"}, args).wait();
  return acc;
}

TEST_P(Collectives, OrderedSumIsInRankOrder) {
  if (size() > 2) {  // the values do tell orders apart
    float other = 0.3f;
    for (int r = size() - 1; r >= 0; --r) other = other + contribution(r, 0, 0);
    ASSERT_NE(other, ordered_result(size(), 0, 1, 0.3f)[0]);
  }
  for (const std::int64_t n : {0, 1, 3, 255, 256, 257, 1500}) {
    EXPECT_EQ(reduce(ReduceMode::kOrdered, {}, size(), n, 0.3f),
              ordered_result(size(), rank(), n, 0.3f))
        << n;
  }
}

TEST_P(Collectives, TwoRanksMayOwnOneSlice) {
  std::vector<int> owners;
  const int slices = std::max(1, size() / 2);
  for (int r = 0; r < size(); ++r) owners.push_back(r % slices);
  for (const std::int64_t n : {0, 1, 257, 1500}) {
    EXPECT_EQ(reduce(ReduceMode::kOrdered, owners, slices, n, 0.3f),
              ordered_result(size(), owners[rank()], n, 0.3f))
        << n;
  }
}

TEST_P(Collectives, LibrarySumAgreesAndIsEqualOnBothOwners) {
  std::vector<int> owners;
  for (int r = 0; r < size(); ++r) owners.push_back((size() - 1 - r) / 2);
  for (const std::int64_t n : {0, 1, 257, 1500}) {
    const std::vector<float> acc = reduce(ReduceMode::kLibrary, owners, size(), n, 0.25f);
    for (std::int64_t i = 0; i < n; ++i) {
      double expected = 0.25;
      for (int r = 0; r < size(); ++r) expected += contribution(r, owners[rank()], i);
      ASSERT_NEAR(acc[i], expected, 64.0) << n << ' ' << i;  // 1e8 x 5 has an ulp of 32
    }
    std::vector<float> all(static_cast<std::size_t>(n * size() + 1));
    std::copy(acc.begin(), acc.end(), all.begin() + rank() * n);
    comm().all_gather({"compare"}, {all.data(), Bytes{n * 4}}).wait();
    for (int r = 0; r < size(); ++r) {
      if (owners[r] != owners[rank()]) continue;
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(all[r * n + i], acc[i]);
    }
  }
}

TEST_P(Collectives, ManyCallsInFlightOnSeveralCommunicators) {
  World& world = test_world();
  const auto halves = world.split(rank() % 2, rank(), "half");
  const auto reversed = world.split(0, size() - rank(), "reversed");
  EXPECT_EQ(reversed->rank(), size() - 1 - rank());
  EXPECT_EQ(halves->rank(), rank() / 2);
  constexpr int kCalls = 20;
  std::vector<std::vector<int>> buffers;
  std::vector<std::vector<float>> sums;
  for (int c = 0; c < kCalls; ++c) {
    buffers.emplace_back(static_cast<std::size_t>(size() * 300));
    sums.emplace_back(300, 0.5f);
  }
  std::vector<Work> works;
  std::vector<float> input(static_cast<std::size_t>(size() * 300), 1.0f);
  std::vector<float> scratch(static_cast<std::size_t>(kCalls * size() * 300));
  for (int c = 0; c < kCalls; ++c) {
    Communicator& on = c % 3 == 0 ? *halves : c % 3 == 1 ? *reversed : comm();
    std::fill_n(buffers[c].begin() + on.rank() * 300, 300, 1000 * c + rank());
    works.push_back(on.all_gather({"layers." + std::to_string(c)},
                                  {buffers[c].data(), Bytes{300 * sizeof(int)}}));
    ReduceScatter args;
    args.input = input.data();
    args.accumulator = sums[c].data();
    args.per_slice = Elems{300};
    args.scratch = scratch.data() + c * size() * 300;
    args.mode = c % 2 == 0 ? ReduceMode::kOrdered : ReduceMode::kLibrary;
    works.push_back(on.reduce_scatter({"gradients." + std::to_string(c)}, args));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  for (int c = 0; c < kCalls; ++c) {
    Communicator& on = c % 3 == 0 ? *halves : c % 3 == 1 ? *reversed : comm();
    for (int r = 0; r < on.size(); ++r) {
      const int world_rank = c % 3 == 0 ? 2 * r + rank() % 2 : c % 3 == 1 ? size() - 1 - r : r;
      ASSERT_EQ(buffers[c][r * 300 + 299], 1000 * c + world_rank) << c << ' ' << r;
    }
    ASSERT_EQ(sums[c][299], 0.5f + static_cast<float>(on.size())) << c;
  }
}

TEST_P(Collectives, AGroupStartsTogether) {
  std::vector<int> a(static_cast<std::size_t>(size())), b(static_cast<std::size_t>(size()));
  a[rank()] = rank();
  b[rank()] = -rank();
  std::int64_t sum = rank();
  AllReduceSmall args;
  args.integers = &sum;
  args.count = 1;
  comm().group_begin();
  EXPECT_THROW(comm().group_begin(), Error);
  Work inner = comm().all_gather({"a"}, {a.data(), Bytes{sizeof(int)}});
  if (size() > 1) {
    EXPECT_THROW(inner.wait(), Error);  // before group_end it would never end
  }
  comm().all_gather({"b"}, {b.data(), Bytes{sizeof(int)}});
  comm().all_reduce_small({"c"}, args);
  Work all = comm().group_end();
  all.wait();
  EXPECT_TRUE(all.done());
  EXPECT_TRUE(inner.done());
  for (int r = 0; r < size(); ++r) {
    EXPECT_EQ(a[r], r);
    EXPECT_EQ(b[r], -r);
  }
  EXPECT_EQ(sum, size() * (size() - 1) / 2);
  EXPECT_THROW(comm().group_end(), Error);
  comm().group_begin();
  comm().group_end().wait();
}

}  // namespace
}  // namespace k25::parallel
