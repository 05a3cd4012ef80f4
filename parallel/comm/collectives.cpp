#include "parallel/comm/collectives.h"

#include <algorithm>
#include <cstring>

namespace k25::parallel {
namespace {

using Step = Operation::Step;
using Steps = std::vector<Step>;

void copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

/// f(peer) for all other ranks, beginning behind `rank` so that not all talk to rank 0 first.
template <class F>
void for_each_peer(int rank, int size, const F& f) {
  for (int k = 1; k < size; ++k) f((rank + k) % size);
}

/// Everybody sends `mine` to everybody; what rank r sent lies at all + r * bytes.
Step exchange(int rank, int size, const void* mine, char* all, std::int64_t bytes) {
  return [=](Poster& poster) {
    for_each_peer(rank, size, [&](int p) { poster.receive(p, all + p * bytes, bytes); });
    for_each_peer(rank, size, [&](int p) { poster.send(p, mine, bytes); });
  };
}

Steps ordered_steps(const Channel& channel, const ReduceScatter& args) {
  const int rank = channel.rank;
  const int size = channel.size();
  const std::int64_t n = args.per_slice.n;
  const std::int64_t bytes = bytes_of(args.per_slice, DType::kFloat32).n;
  std::vector<std::int64_t> offset_of;
  for (int r = 0; r < size; ++r) offset_of.push_back(slice_of(args, r) * n);
  const float* const mine = n == 0 ? nullptr : args.input + offset_of[rank];
  const Step messages = [=, input = args.input, scratch = args.scratch](Poster& poster) {
    for_each_peer(rank, size, [&](int p) { poster.receive(p, scratch + p * n, bytes); });
    for_each_peer(rank, size, [&](int p) { poster.send(p, input + offset_of[p], bytes); });
  };
  const Step sum = [=, scratch = args.scratch, accumulator = args.accumulator](Poster&) {
    fold_ordered(scratch, rank, n, accumulator);
    fold_ordered(mine, 1, n, accumulator);
    fold_ordered(scratch + (rank + 1) * n, size - rank - 1, n, accumulator);
  };
  return {messages, sum};
}

/// Which rank asks the library for a slice, and who gets a copy: two ranks that own the same slice
/// must not see two different roundings.
struct Ownership {
  std::vector<int> roots;  ///< of each distinct slice
  std::vector<int> slices;
  std::vector<int> root_of_rank;
};

Ownership ownership(const ReduceScatter& args, int size) {
  Ownership o;
  for (int r = 0; r < size; ++r) {
    const int slice = slice_of(args, r);
    const auto known = std::ranges::find(o.slices, slice);
    if (known == o.slices.end()) {
      o.slices.push_back(slice);
      o.roots.push_back(r);
      o.root_of_rank.push_back(r);
    } else {
      o.root_of_rank.push_back(o.roots[static_cast<std::size_t>(known - o.slices.begin())]);
    }
  }
  return o;
}

Steps library_steps(const Channel& channel, const ReduceScatter& args) {
  const int rank = channel.rank;
  const int size = channel.size();
  const std::int64_t n = args.per_slice.n;
  const std::int64_t bytes = bytes_of(args.per_slice, DType::kFloat32).n;
  const auto own = std::make_shared<const Ownership>(ownership(args, size));
  const auto sum = std::make_shared<std::vector<float>>(static_cast<std::size_t>(n));

  // The empty messages tell who has arrived; the library would not.
  const Step reduce = [=, input = args.input](Poster& poster) {
    for_each_peer(rank, size, [&](int p) { poster.receive(p, nullptr, 0); });
    for_each_peer(rank, size, [&](int p) { poster.send(p, nullptr, 0); });
    for (std::size_t i = 0; n > 0 && i < own->slices.size(); ++i) {
      poster.reduce(own->roots[i], input + own->slices[i] * n, sum->data(), n);
    }
  };
  const Step hand_on = [=](Poster& poster) {
    const int root = own->root_of_rank[static_cast<std::size_t>(rank)];
    if (root != rank) poster.receive(root, sum->data(), bytes);
    for_each_peer(rank, size, [&](int p) {
      if (own->root_of_rank[static_cast<std::size_t>(p)] == rank) {
        poster.send(p, sum->data(), bytes);
      }
    });
  };
  const Step add = [=, accumulator = args.accumulator](Poster&) {
    fold_ordered(sum->data(), 1, n, accumulator);
  };
  return {reduce, hand_on, add};
}

template <class T>
Steps small_steps(const Channel& channel, const AllReduceSmall& args, T* values) {
  const int rank = channel.rank;
  const int size = channel.size();
  const std::int64_t bytes = args.count * static_cast<std::int64_t>(sizeof(T));
  const auto all = std::make_shared<std::vector<T>>(static_cast<std::size_t>(args.count * size));
  T* const rows = all->data();
  const Step gather = [=](Poster& poster) {
    T* const mine = rows + rank * args.count;
    copy(mine, values, bytes);
    exchange(rank, size, mine, reinterpret_cast<char*>(rows), bytes)(poster);
  };
  const Step fold = [=](Poster&) {
    for (int r = 1; r < size; ++r) fold_small(args, all->data(), rows + r * args.count);
    copy(values, rows, bytes);
  };
  return {gather, fold};
}

}  // namespace

Steps steps_of(const Channel& channel, const AllGather& args) {
  char* const all = static_cast<char*>(args.buffer);
  const std::int64_t bytes = args.per_rank.n;
  return {exchange(channel.rank, channel.size(), all + channel.rank * bytes, all, bytes)};
}

Steps steps_of(const Channel& channel, const AllToAll& args) {
  const int rank = channel.rank;
  const int size = channel.size();
  const std::int64_t bytes = args.per_rank.n;
  const char* const send = static_cast<const char*>(args.send);
  char* const recv = static_cast<char*>(args.recv);
  return {[=](Poster& poster) {
    for_each_peer(rank, size, [&](int p) { poster.receive(p, recv + p * bytes, bytes); });
    for_each_peer(rank, size, [&](int p) { poster.send(p, send + p * bytes, bytes); });
    copy(recv + rank * bytes, send + rank * bytes, bytes);
  }};
}

Steps steps_of(const Channel& channel, const AllToAllV& args) {
  struct Piece {
    std::int64_t send_offset, send_size, recv_offset, recv_size;
  };
  const int rank = channel.rank;
  const int size = channel.size();
  std::vector<Piece> pieces;
  for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r) {
    pieces.push_back({args.send_offsets[r].n, args.send_sizes[r].n, args.recv_offsets[r].n,
                      args.recv_sizes[r].n});
  }
  const char* const send = static_cast<const char*>(args.send);
  char* const recv = static_cast<char*>(args.recv);
  return {[=](Poster& poster) {
    for_each_peer(rank, size, [&](int p) {
      poster.receive(p, recv + pieces[p].recv_offset, pieces[p].recv_size);
    });
    for_each_peer(rank, size, [&](int p) {
      poster.send(p, send + pieces[p].send_offset, pieces[p].send_size);
    });
    copy(recv + pieces[rank].recv_offset, send + pieces[rank].send_offset, pieces[rank].send_size);
  }};
}

Steps steps_of(const Channel& channel, const ReduceScatter& args) {
  return args.mode == ReduceMode::kOrdered ? ordered_steps(channel, args)
                                           : library_steps(channel, args);
}

Steps steps_of(const Channel& channel, const AllReduceSmall& args) {
  if (args.integers != nullptr) return small_steps(channel, args, args.integers);
  return small_steps(channel, args, args.values);
}

Steps steps_of(const Channel& channel, const Broadcast& args) {
  const int rank = channel.rank;
  const int size = channel.size();
  // Sent directly, not along a tree: a rank then misses the root itself, never a rank between.
  return {[=](Poster& poster) {
    if (rank != args.root) return poster.receive(args.root, args.data, args.size.n);
    for_each_peer(rank, size, [&](int p) { poster.send(p, args.data, args.size.n); });
  }};
}

Steps steps_of(const Channel& channel, const RingExchange& args) {
  const int next = (channel.rank + 1) % channel.size();
  const int previous = (channel.rank + channel.size() - 1) % channel.size();
  return {[=](Poster& poster) {
    poster.receive(previous, args.recv, args.size.n);
    poster.send(next, args.send, args.size.n);
  }};
}

Steps barrier_steps(const Channel& channel) {
  return {exchange(channel.rank, channel.size(), nullptr, nullptr, 0)};
}

}  // namespace k25::parallel
