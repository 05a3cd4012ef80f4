#pragma once
// One process, its stores of the toy model, and a count of what they communicate.

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/parallel/zero/toy.h"

namespace k25::parallel {

class ZeroStoreTest : public testing::Test {
 protected:
  ZeroStore make(const ZeroOptions& options) { return make(options, toy_.units()); }
  ZeroStore make(const ZeroOptions& options, const std::vector<UnitSpec>& units) {
    return {mesh_, units, options, context_, allocator_};
  }

  /// Collectives so far whose log line holds both words.
  int count(const std::string& op, const std::string& unit) const {
    std::istringstream lines(world_->dump());
    int found = 0;
    for (std::string line; std::getline(lines, line);) {
      const bool hit = line.find(op) != std::string::npos && line.find(unit) != std::string::npos;
      found += hit ? 1 : 0;
    }
    return found;
  }
  int gathers(const std::string& unit) const { return count("all_gather", unit); }

  Toy toy_;
  std::unique_ptr<World> world_ = World::create({});
  Mesh mesh_{*world_, {}};
  HostAllocator allocator_;
  Context context_;
};

}  // namespace k25::parallel
