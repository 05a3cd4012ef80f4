// Columns, units, prices.
#include "trainer/plan/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/trainer/plan/plan_config.h"
#include "trainer/plan/table.h"

namespace k25::trainer {
namespace {

/// The cells of the row that begins with `label`.
std::vector<std::string> cells(const std::string& text, const std::string& label) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(label)) continue;
    std::istringstream rest(line.substr(label.size()));
    std::vector<std::string> found;
    for (std::string cell; rest >> cell;) found.push_back(cell);
    return found;
  }
  return {};
}

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() : planner_(plan_test::kConfig, "test.yaml", {}, make_cluster(2, 0, 0)) {
    for (const char* name : {"a100-80", "h200"}) plans_.push_back(planner_.plan(find_card(name)));
  }
  PlanReport report(std::vector<double> prices = {}) {
    prices_.per_gpu_hour = std::move(prices);
    return {planner_, plans_, prices_};
  }

  Planner planner_;
  std::vector<CardPlan> plans_;
  Prices prices_;
};

TEST_F(ReportTest, EveryCategoryInBytesAndInGib) {
  const std::string text = report_memory(report());
  const std::string bytes = text.substr(0, text.find("GiB per rank"));
  const std::string gib = text.substr(text.find("GiB per rank"));
  std::int64_t sum = 0;
  for (const MemoryRow& row : plans_[0].memory.rows()) {
    const auto found = cells(bytes, row.name);
    ASSERT_EQ(found.size(), 3) << row.name;  // two cards and the host
    EXPECT_EQ(found[0], std::to_string(row.device.n));
    EXPECT_EQ(found[2], std::to_string(row.host.n));
    EXPECT_EQ(cells(gib, row.name)[0], gib_text(static_cast<double>(row.device.n)));
    sum += row.device.n;
  }
  EXPECT_EQ(cells(bytes, "planned")[0], std::to_string(sum));
  EXPECT_EQ(cells(text, "fits"), (std::vector<std::string>{"yes", "yes"}));
}

TEST_F(ReportTest, PricesFollowTheTime) {
  const auto price = [&](std::size_t card, double per_hour) {
    return fmt::format("{:.2f}", 10 * plans_[card].time->total() / 3600 * 2 * per_hour);
  };
  EXPECT_TRUE(cells(report_time(report()), "price").empty());
  EXPECT_EQ(cells(report_time(report({1e6})), "price"),
            (std::vector<std::string>{price(0, 1e6), price(1, 1e6)}));
  EXPECT_EQ(cells(report_time(report({1e6, 2e7})), "price"),
            (std::vector<std::string>{price(0, 1e6), price(1, 2e7)}));
}

TEST_F(ReportTest, EstimatesAreCalledSo) {
  EXPECT_EQ(cells(report_time(report()), "ceilings"),
            (std::vector<std::string>{"estimated", "measured"}));
}

TEST_F(ReportTest, TheBatchIsAnEquation) {
  EXPECT_NE(report_run(report()).find("16 = micro_batch 2 x accumulation 4 x 2 data ranks; 512 "
                                      "tokens a step, 5120 in 10 steps"),
            std::string::npos)
      << report_run(report());
}

TEST(Table, AlignsItsColumns) {
  Table table("a", {"bb", "c"});
  table.add("long", {"1", "22222"});
  EXPECT_EQ(table.text(), "a     bb      c\nlong   1  22222\n");
}

TEST(Table, GibOfFewBytesAreNotZero) {
  EXPECT_EQ(gib_text(0), "0.000");
  EXPECT_EQ(gib_text(3.0 * (1 << 29)), "1.500");
  EXPECT_EQ(gib_text(1 << 16), "0.000061");
  EXPECT_EQ(gib_text(-3.0 * (1 << 29)), "-1.500");
}

}  // namespace
}  // namespace k25::trainer
