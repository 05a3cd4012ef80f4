// Hosts read through hwloc: descriptions of other machines, and this one.
#include "parallel/placement/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "parallel/placement/cpu_list.h"

namespace k25::parallel {
namespace {

/// Attributes of an object over `cpus` and `nodes`, bit masks.
std::string sets(const std::string& cpus, const std::string& nodes) {
  std::string text;
  for (const char* name : {"cpuset", "complete_cpuset"})
    text += " " + std::string(name) + "=\"" + cpus + "\"";
  for (const char* name : {"nodeset", "complete_nodeset"})
    text += " " + std::string(name) + "=\"" + nodes + "\"";
  return text;
}

std::string object(const std::string& type, int id, const std::string& attributes,
                   const std::string& inside = "") {
  return "<object type=\"" + type + "\" gp_index=\"" + std::to_string(id) + "\"" + attributes +
         ">" + inside + "</object>\n";
}

/// A package of one core with two hardware threads, its node, and what hangs from it.
std::string package(int n, const std::string& devices) {
  const std::string cpus[] = {"0x00000003", "0x0000000c"};
  const std::string threads[] = {"0x00000001", "0x00000002", "0x00000004", "0x00000008"};
  const std::string node = n == 0 ? "0x00000001" : "0x00000002";
  const std::string index = " os_index=\"" + std::to_string(n) + "\"";
  const int id = 100 * (n + 1);
  std::string units;
  for (int t = 2 * n; t < 2 * n + 2; ++t) {
    units +=
        object("PU", id + t, " os_index=\"" + std::to_string(t) + "\"" + sets(threads[t], node));
  }
  return object("Package", id + 10, index + sets(cpus[n], node),
                object("NUMANode", id + 11, index + sets(cpus[n], node)) +
                    object("Core", id + 12, index + sets(cpus[n], node), units) + devices);
}

std::string bridge(int id, const std::string& type, const std::string& attributes,
                   const std::string& inside) {
  return object("Bridge", id, " bridge_type=\"" + type + "\" depth=\"0\"" + attributes, inside);
}

std::string pci(int id, const std::string& bus, const std::string& kind,
                const std::string& inside = "") {
  return object("PCIDev", id,
                " pci_busid=\"" + bus + "\" pci_type=\"" + kind +
                    " [10de:2335] [10de:18be] a1\" pci_link_speed=\"0.0\"",
                inside);
}

std::string nic(int id, const std::string& name, int type) {
  return object("OSDev", id, " name=\"" + name + "\" osdev_type=\"" + std::to_string(type) + "\"");
}

/// Two packages. Below the second: a switch with a GPU and an InfiniBand card.
std::string two_packages() {
  const std::string first = bridge(130, "0-1", " bridge_pci=\"0000:[00-01]\"",
                                   pci(131, "0000:01:00.0", "0200", nic(132, "eth0", 2)));
  const std::string behind_switch =
      pci(233, "0000:9a:00.0", "0302") +
      pci(234, "0000:9b:00.0", "0207", nic(235, "ib1", 2) + nic(236, "mlx5_1", 3));
  const std::string second = bridge(
      230, "0-1", " bridge_pci=\"0000:[90-9b]\"",
      bridge(231, "1-1",
             " bridge_pci=\"0000:[9a-9b]\" pci_busid=\"0000:90:00.0\" pci_type=\"0604 [1000:c030] "
             "[1000:100b] b0\" pci_link_speed=\"0.0\"",
             behind_switch));
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
         "<topology version=\"2.0\">\n" +
         object("Machine", 1,
                " os_index=\"0\" allowed_cpuset=\"0x0000000f\" allowed_nodeset=\"0x00000003\"" +
                    sets("0x0000000f", "0x00000003"),
                package(0, first) + package(1, second)) +
         "</topology>\n";
}

TEST(Topology, SyntheticCoresAndThreads) {
  const Topology t = read_topology(TopologySource::kSynthetic, "pack:2 [numa] core:8 pu:2");
  ASSERT_EQ(t.cores.size(), 16U);
  EXPECT_EQ(t.cores[0].cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(t.cores[0].numa_node, 0);
  EXPECT_EQ(t.cores[15].cpus, (std::vector<int>{30, 31}));
  EXPECT_EQ(t.cores[15].numa_node, 1);
  EXPECT_TRUE(t.gpus.empty());
  EXPECT_TRUE(t.nics.empty());
}

TEST(Topology, DevicesOfAnotherMachine) {
  const Topology t = read_topology(TopologySource::kXml, two_packages());
  ASSERT_EQ(t.cores.size(), 2U);
  EXPECT_EQ(t.cores[1].cpus, (std::vector<int>{2, 3}));
  ASSERT_EQ(t.gpus.size(), 1U);
  EXPECT_EQ(t.gpus[0].name, "0000:9a:00.0");
  EXPECT_EQ(t.gpus[0].numa_node, 1);
  EXPECT_EQ(t.gpus[0].bridges.size(), 2U);
  // The Ethernet card does not count beside an InfiniBand one, whose network face is the same card.
  ASSERT_EQ(t.nics.size(), 1U);
  EXPECT_EQ(t.nics[0].name, "mlx5_1");
  EXPECT_EQ(t.nics[0].numa_node, 1);
  EXPECT_EQ(t.nics[0].bridges, t.gpus[0].bridges);
}

TEST(Topology, WhatCannotBeReadIsEmpty) {
  EXPECT_TRUE(read_topology(TopologySource::kSynthetic, "no such machine").cores.empty());
  EXPECT_TRUE(read_topology(TopologySource::kXml, "<topology").cores.empty());
}

TEST(Topology, ThisMachineHasTheCpusOfThisProcess) {
  std::vector<int> cpus;
  for (const TopologyCore& core : read_topology().cores) {
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  std::ranges::sort(cpus);
  const std::vector<int> mine = cpus_of_process();
  EXPECT_FALSE(mine.empty());
  EXPECT_TRUE(std::ranges::includes(cpus, mine));
}

TEST(Topology, Addresses) {
  EXPECT_EQ(normal_bus("0000:1B:00.0"), "0000:1b:00.0");
  EXPECT_EQ(normal_bus("00000000:1b:00.0"), "0000:1b:00.0");
  EXPECT_EQ(normal_bus("10000:1b:00.1"), "10000:1b:00.1");
  EXPECT_EQ(normal_bus("1b:00.0"), "1b:00.0");
  EXPECT_EQ(normal_bus("0000:1b:00.0 and more"), "0000:1b:00.0 and more");
  EXPECT_EQ(normal_bus(""), "");
}

}  // namespace
}  // namespace k25::parallel
