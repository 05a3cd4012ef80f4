#pragma once
// Private to parallel/comm: point-to-point messages, the little that the communication thread needs
// from MPI. Tests put a recording or an in-process transport in its place.
//
// A channel is one communicator's own message space; channel 0 is the world. Peers are ranks of the
// channel. Messages of one (channel, tag, pair of ranks) arrive in the order they were sent.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/world.h"

namespace k25::parallel {

/// Chosen by the caller, returned once by poll().
using Ticket = std::int64_t;

struct Envelope {
  int channel = 0;
  int peer = 0;
  int tag = 0;  ///< below 32768
};

struct Completion {
  Ticket ticket = 0;
  std::int64_t received = 0;  ///< bytes that arrived; 0 for other tickets
  std::string error;          ///< empty: fine
};

/// All members are called from the communication thread, errors are thrown as kCommunication.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Collective. Returns one Peer per rank; rank() is valid afterwards. Ranks that have reached the
  /// library but do not answer within `limit` are an error that names them.
  virtual std::vector<Peer> start(std::chrono::milliseconds limit) = 0;
  virtual int rank() const = 0;

  /// At most INT_MAX bytes; `data` stays until the ticket comes back, or until the last call but
  /// abort().
  virtual void send(Ticket ticket, const Envelope& to, const void* data, std::int64_t bytes) = 0;
  /// A message of another size is not written to `data`: the ticket comes back with its size.
  virtual void receive(Ticket ticket, const Envelope& from, void* data, std::int64_t bytes) = 0;
  /// Library sum of `count` floats of all ranks of the channel, into `output` on rank `to.peer`.
  /// Collective: all ranks start these in the same order.
  virtual void reduce(Ticket ticket, const Envelope& to, const float* input, float* output,
                      std::int64_t count) = 0;
  /// Appends what has completed since the last call. Never blocks.
  virtual void poll(std::vector<Completion>& done) = 0;

  /// Collective over the world; may block until all ranks call it. Returns the new channel.
  virtual int create_channel(int color, int key) = 0;

  /// The rank of a peer that sent announce_failure, if one has since the last call.
  virtual std::optional<int> failed_peer() = 0;
  /// Tells all peers that this rank failed, waiting at most `patience` for the sends.
  virtual void announce_failure(std::chrono::milliseconds patience) = 0;

  /// Collective, the orderly end.
  virtual void finalize() = 0;
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

std::unique_ptr<Transport> make_mpi_transport();

}  // namespace k25::parallel
