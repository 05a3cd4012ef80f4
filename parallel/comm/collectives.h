#pragma once
// Private to parallel/comm: every collective as steps of direct messages.
//
// The arguments' pointers are used by the communication thread until the call is done; spans are
// copied. What a rank sends itself is copied, or read in place.

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/comm/operation.h"

namespace k25::parallel {

std::vector<Operation::Step> steps_of(const Channel& channel, const AllGather& args);
std::vector<Operation::Step> steps_of(const Channel& channel, const AllToAll& args);
std::vector<Operation::Step> steps_of(const Channel& channel, const AllToAllV& args);
std::vector<Operation::Step> steps_of(const Channel& channel, const ReduceScatter& args);
std::vector<Operation::Step> steps_of(const Channel& channel, const AllReduceSmall& args);
std::vector<Operation::Step> steps_of(const Channel& channel, const Broadcast& args);
std::vector<Operation::Step> steps_of(const Channel& channel, const RingExchange& args);
std::vector<Operation::Step> barrier_steps(const Channel& channel);

/// comm.check: two steps to put before a call's own. They exchange what each rank calls; the second
/// throws kCommunication on all ranks when two differ.
std::vector<Operation::Step> check_steps(const std::shared_ptr<Channel>& channel, const CallId& id);

}  // namespace k25::parallel
