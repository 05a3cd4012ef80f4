// Transport over MPI: the only file that calls it.

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <thread>
#include <tuple>

#include "kernels/core/check.h"
#include "parallel/comm/single_backend.h"
#include "parallel/comm/transport.h"

namespace k25::parallel {
namespace {

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return fmt::format("MPI error {}", code);
  }
  return std::string(text.data(), static_cast<std::size_t>(length));
}

[[noreturn]] void mpi_failed(const char* call, int code, std::source_location where) {
  fail(ErrorKind::kCommunication, fmt::format("{} failed: {}", call, error_text(code)), where);
}

// Works because every communicator returns its errors (see start).
#define K25_MPI_CHECK(call)                                             \
  do {                                                                  \
    const int k25_mpi_code = (call);                                    \
    if (k25_mpi_code != MPI_SUCCESS) [[unlikely]]                       \
      mpi_failed(#call, k25_mpi_code, std::source_location::current()); \
  } while (false)

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  K25_MPI_CHECK(MPI_Comm_dup(comm, &copy));
  K25_MPI_CHECK(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN));
  return copy;
}

class MpiTransport final : public Transport {
 public:
  std::vector<Peer> start(std::chrono::milliseconds limit) override {
    int provided = 0;
    // Errors of the call itself abort inside MPI: there is no communicator yet to say otherwise.
    K25_MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
    K25_MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    K25_MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    if (provided < MPI_THREAD_FUNNELED) {
      fail(ErrorKind::kCommunication, "this MPI offers no MPI_THREAD_FUNNELED");
    }
    K25_MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
    K25_MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size_));
    std::vector<Peer> peers = exchange_peers(limit);
    add_channel(duplicate(MPI_COMM_WORLD));
    control_ = duplicate(MPI_COMM_WORLD);
    return peers;
  }

  int rank() const override { return rank_; }

  void send(Ticket ticket, const Envelope& to, const void* data, std::int64_t bytes) override {
    MPI_Request& request = add(ticket, Kind::kSend);
    K25_MPI_CHECK(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to.peer, to.tag,
                            channels_[static_cast<std::size_t>(to.channel)], &request));
  }

  void receive(Ticket ticket, const Envelope& from, void* data, std::int64_t bytes) override {
    Line& line = lines_[{from.channel, from.peer, from.tag}];
    line.awaited.push_back({ticket, data, bytes});
    ++num_awaited_[static_cast<std::size_t>(from.channel)];
    pair(from.channel, line);
  }

  void reduce(Ticket ticket, const Envelope& to, const float* input, float* output,
              std::int64_t count) override {
    MPI_Request& request = add(ticket, Kind::kReduce);
    K25_MPI_CHECK(MPI_Ireduce(input, output, static_cast<int>(count), MPI_FLOAT, MPI_SUM, to.peer,
                              channels_[static_cast<std::size_t>(to.channel)], &request));
  }

  void poll(std::vector<Completion>& done) override {
    take_arrivals();
    std::ranges::move(misfits_, std::back_inserter(done));
    misfits_.clear();
    if (requests_.empty()) return;
    const int pending = static_cast<int>(requests_.size());
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int completed = 0;
    const int code =
        MPI_Testsome(pending, requests_.data(), &completed, indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) K25_MPI_CHECK(code);
    if (completed == MPI_UNDEFINED || completed == 0) return;
    for (int i = 0; i < completed; ++i) {
      const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
      const bool failed = code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS;
      done.push_back(completion(messages_[static_cast<std::size_t>(indices_[i])], status));
      if (failed) done.back().error = error_text(status.MPI_ERROR);
    }
    remove(static_cast<std::size_t>(completed));
  }

  int create_channel(int color, int key) override {
    MPI_Comm comm = MPI_COMM_NULL;
    K25_MPI_CHECK(MPI_Comm_split(channels_[0], color, key, &comm));
    K25_MPI_CHECK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    add_channel(comm);
    return static_cast<int>(channels_.size()) - 1;
  }

  std::optional<int> failed_peer() override {
    int there = 0;
    MPI_Status status;
    K25_MPI_CHECK(MPI_Iprobe(MPI_ANY_SOURCE, kFailureTag, control_, &there, &status));
    if (there == 0) return std::nullopt;
    const int peer = status.MPI_SOURCE;
    K25_MPI_CHECK(MPI_Recv(nullptr, 0, MPI_BYTE, peer, kFailureTag, control_, MPI_STATUS_IGNORE));
    return peer;
  }

  void announce_failure(std::chrono::milliseconds patience) override {
    std::vector<MPI_Request> sends;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      sends.push_back(MPI_REQUEST_NULL);
      K25_MPI_CHECK(MPI_Isend(nullptr, 0, MPI_BYTE, peer, kFailureTag, control_, &sends.back()));
    }
    // The peers look every 20 ms; leaving at once would let them see a dead peer before the
    // message.
    const auto until = Clock::now() + patience;
    while (Clock::now() < until) {
      int all = 0;
      K25_MPI_CHECK(
          MPI_Testall(static_cast<int>(sends.size()), sends.data(), &all, MPI_STATUSES_IGNORE));
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
  }

  void finalize() override { K25_MPI_CHECK(MPI_Finalize()); }

  [[noreturn]] void abort(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  static constexpr int kFailureTag = 1;
  struct Awaited {
    Ticket ticket = 0;
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct Arrived {
    MPI_Message message = MPI_MESSAGE_NULL;
    int bytes = 0;
  };
  /// The messages of one (channel, peer, tag) that wait for the other side, oldest first.
  struct Line {
    std::deque<Awaited> awaited;
    std::deque<Arrived> arrived;
  };
  enum class Kind : std::uint8_t { kSend, kReceive, kReduce };
  struct Message {
    Ticket ticket = 0;
    Kind kind = Kind::kSend;
  };

  void add_channel(MPI_Comm comm) {
    channels_.push_back(comm);
    num_awaited_.push_back(0);
  }

  MPI_Request& add(Ticket ticket, Kind kind) {
    messages_.push_back({ticket, kind});
    requests_.push_back(MPI_REQUEST_NULL);
    return requests_.back();
  }

  /// NOTE: a message is measured before it is received. Open MPI 4.1 writes one that is longer than
  /// its receive beyond the end of the buffer (shared memory, from 4 KiB on), and only then says
  /// that it was truncated.
  void take_arrivals() {
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      while (num_awaited_[c] > 0) {
        int there = 0;
        Arrived arrived;
        MPI_Status status;
        K25_MPI_CHECK(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, channels_[c], &there,
                                  &arrived.message, &status));
        if (there == 0) break;
        K25_MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &arrived.bytes));
        const int channel = static_cast<int>(c);
        Line& line = lines_[{channel, status.MPI_SOURCE, status.MPI_TAG}];
        line.arrived.push_back(arrived);
        pair(channel, line);
      }
    }
  }

  void pair(int channel, Line& line) {
    while (!line.awaited.empty() && !line.arrived.empty()) {
      const Awaited awaited = line.awaited.front();
      Arrived arrived = line.arrived.front();
      line.awaited.pop_front();
      line.arrived.pop_front();
      --num_awaited_[static_cast<std::size_t>(channel)];
      if (arrived.bytes != awaited.bytes) {
        misfits_.push_back({awaited.ticket, arrived.bytes, {}});
        continue;
      }
      MPI_Request& request = add(awaited.ticket, Kind::kReceive);
      K25_MPI_CHECK(MPI_Imrecv(awaited.data, arrived.bytes, MPI_BYTE, &arrived.message, &request));
    }
  }

  static Completion completion(const Message& message, const MPI_Status& status) {
    Completion c{message.ticket, 0, {}};
    if (message.kind == Kind::kReceive) {
      int count = 0;
      K25_MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &count));
      c.received = count;
    }
    return c;
  }

  /// Takes the first `completed` of indices_ out; the order of the rest does not matter.
  void remove(std::size_t completed) {
    std::sort(indices_.begin(), indices_.begin() + static_cast<std::ptrdiff_t>(completed),
              std::greater<>());
    for (std::size_t i = 0; i < completed; ++i) {
      const auto index = static_cast<std::size_t>(indices_[i]);
      requests_[index] = requests_.back();
      messages_[index] = messages_.back();
      requests_.pop_back();
      messages_.pop_back();
    }
  }

  /// Message by message, not as a collective: that would not tell who is missing.
  std::vector<Peer> exchange_peers(std::chrono::milliseconds limit) const {
    struct Card {
      std::array<char, 256> host;
      std::int64_t pid;
    };
    Card mine{{}, static_cast<std::int64_t>(getpid())};
    const std::string host = host_name();
    std::memcpy(mine.host.data(), host.data(), std::min(host.size(), mine.host.size() - 1));
    std::vector<Card> all(static_cast<std::size_t>(size_));
    std::vector<MPI_Request> sends(all.size(), MPI_REQUEST_NULL), receives = sends;
    for (std::size_t r = 0; r < all.size(); ++r) {
      const int peer = static_cast<int>(r);
      K25_MPI_CHECK(
          MPI_Irecv(&all[r], sizeof(Card), MPI_BYTE, peer, 0, MPI_COMM_WORLD, &receives[r]));
      K25_MPI_CHECK(MPI_Isend(&mine, sizeof(Card), MPI_BYTE, peer, 0, MPI_COMM_WORLD, &sends[r]));
    }
    wait_for_all(receives, limit);
    wait_for_all(sends, limit);
    std::vector<Peer> peers;
    for (const Card& card : all) peers.push_back({card.host.data(), card.pid});
    return peers;
  }

  /// `requests` are by rank.
  static void wait_for_all(std::vector<MPI_Request>& requests, Clock::duration limit) {
    int done = 0;
    // Time in which this process itself was stopped does not count.
    constexpr std::chrono::milliseconds kLongest{100};
    Clock::time_point last = Clock::now();
    while (limit > Clock::duration::zero()) {
      K25_MPI_CHECK(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                                MPI_STATUSES_IGNORE));
      if (done != 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds{200});
      const Clock::time_point now = Clock::now();
      limit -= std::min<Clock::duration>(now - last, kLongest);
      last = now;
    }
    std::vector<int> missing;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      K25_MPI_CHECK(MPI_Test(&requests[r], &done, MPI_STATUS_IGNORE));
      if (done == 0) missing.push_back(static_cast<int>(r));
    }
    fail(ErrorKind::kCommunication,
         fmt::format("MPI start-up: no answer from rank {}; it is stopped or lost",
                     fmt::join(missing, ", rank ")));
  }

  int rank_ = 0;
  int size_ = 1;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::vector<MPI_Comm> channels_;
  std::vector<std::int64_t> num_awaited_;            // by channel
  std::map<std::tuple<int, int, int>, Line> lines_;  // by channel, peer and tag
  std::vector<Completion> misfits_;                  // receives that met a message of another size
  std::vector<MPI_Request> requests_;                // beside messages_, as MPI_Testsome wants them
  std::vector<Message> messages_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() { return std::make_unique<MpiTransport>(); }

}  // namespace k25::parallel
