// comm.check: what each rank calls is compared before any data moves.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/philox.h"
#include "parallel/comm/collectives.h"

namespace k25::parallel {
namespace {

/// What travels. The name is cut for the message; its hash covers all of it.
struct Header {
  std::int64_t sequence;
  std::int64_t bytes;
  std::uint64_t name;
  std::int64_t op;
  std::array<char, 64> text;
};

Header header_of(const CallId& id) {
  Header h{id.sequence, id.bytes, name_hash(id.name), static_cast<std::int64_t>(id.op), {}};
  const std::size_t length = std::min(id.name.size(), h.text.size() - 1);
  std::memcpy(h.text.data(), id.name.data(), length);
  return h;
}

bool same_call(const Header& a, const Header& b) {
  return a.sequence == b.sequence && a.bytes == b.bytes && a.name == b.name && a.op == b.op;
}

std::string describe(int world_rank, const Header& h) {
  return fmt::format("rank {}: #{} {} {} {} bytes", world_rank, h.sequence,
                     op_name(static_cast<Op>(h.op)), h.text.data(), h.bytes);
}

void compare(const Channel& channel, const std::vector<Header>& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (same_call(all[0], all[r])) continue;
    fail(ErrorKind::kCommunication,
         fmt::format("the ranks call different collectives on {}: {}; {}; all ranks must make the "
                     "same calls in the same order",
                     channel.name, describe(channel.world_ranks[0], all[0]),
                     describe(channel.world_ranks[r], all[r])));
  }
}

}  // namespace

std::vector<Operation::Step> check_steps(const std::shared_ptr<Channel>& channel,
                                         const CallId& id) {
  const auto all = std::make_shared<std::vector<Header>>(channel->world_ranks.size());
  const int rank = channel->rank;
  (*all)[static_cast<std::size_t>(rank)] = header_of(id);
  const auto exchange = [=](Poster& poster) {
    const int size = channel->size();
    Header* const headers = all->data();
    for (int k = 1; k < size; ++k) {
      const int peer = (rank + k) % size;
      poster.receive(peer, headers + peer, sizeof(Header));
      poster.send(peer, headers + rank, sizeof(Header));
    }
  };
  return {exchange, [=](Poster&) { compare(*channel, *all); }};
}

}  // namespace k25::parallel
