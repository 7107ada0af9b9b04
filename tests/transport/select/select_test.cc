// The list of transports: what each says of itself is its own, and the setting and the documents name those in it.
#include "transport/select/select.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace annulus {
namespace {

TEST(TransportsTest, EachHasItsOwnNameTitleAndPurpose) {
  std::set<std::string> names;
  std::set<std::string> titles;
  std::set<int> purposes = {0, 1};  // None, and the rendezvous.
  for (const TransportInfo* each : Transports()) {
    const std::string name = each->name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(titles.insert(each->title).second) << each->title;
    EXPECT_TRUE(purposes.insert(each->hello_purpose).second) << name;
    EXPECT_NE(name, "auto");
    EXPECT_EQ(FindTransport(Transports(), name), each);
  }
  EXPECT_EQ(FindTransport(Transports(), "auto"), nullptr);
}

TEST(TransportsTest, EachHasCostsAndMemory) {
  for (const TransportInfo* each : Transports()) {
    for (const bool same_host : {true, false}) {
      if (!same_host && each->same_host_only) continue;
      const LinkCosts alone = each->costs({same_host, 1});
      const LinkCosts sharing = each->costs({same_host, 2});
      EXPECT_GT(alone.latency_s, 0) << each->name;
      EXPECT_GT(alone.message_s, 0) << each->name;
      EXPECT_GE(sharing.message_s, alone.message_s) << each->name;
      EXPECT_EQ(sharing.ranks_per_core, 1) << each->name;
    }
    TransportConfig small;
    small.slots = 4;
    small.slot_bytes = 16 * 1024;
    TransportConfig large = small;
    large.slots = 8;
    EXPECT_GE(each->link_memory(small), 4 * small.slot_bytes) << each->name;
    EXPECT_GE(each->link_memory(large), each->link_memory(small) + 4 * small.slot_bytes) << each->name;
  }
}

TEST(TransportsTest, SettingsReachThemByName) {
  TransportOptions options;
  options.tcp_sockets = 5;
  options.checksum = true;
  options.interface_name = "eth9";
  options.shm_stores = SlotStores::kStreaming;
  const TransportSettings settings = SettingsOf(options);
  EXPECT_EQ(settings.Number("tcp_sockets"), 5);
  EXPECT_EQ(settings.Number("checksum"), 1);
  EXPECT_EQ(settings.Text("interface_name"), "eth9");
  EXPECT_EQ(static_cast<SlotStores>(settings.Number("shm_stores")), SlotStores::kStreaming);
  EXPECT_EQ(settings.Number("unknown"), 0);
  EXPECT_EQ(settings.Text("unknown"), "");
  std::vector<std::string> names;
  for (const TransportInfo* each : Transports())
    names.insert(names.end(), each->cost_settings.begin(), each->cost_settings.end());
  EXPECT_EQ(names, (std::vector<std::string>{"tcp_sockets", "encrypt"}));
}

TEST(TransportsTest, TheWordsOfTheSettingAreAutoAndTheirNames) {
  ASSERT_EQ(std::size(kTransportWords), Transports().size() + 1);
  for (size_t i = 0; i < Transports().size(); ++i) {
    const TransportInfo& each = *Transports()[i];
    const auto choice = static_cast<TransportChoice>(i + 1);
    EXPECT_STREQ(kTransportWords[i + 1], each.name);
    EXPECT_EQ(OnlyTransport(Transports(), choice), &each);
    EXPECT_TRUE(CheckTransport(Transports(), choice).ok());
    for (const TransportInfo* other : Transports()) EXPECT_EQ(Allows(choice, *other), other == &each);
    EXPECT_EQ(Allows(TransportChoice::kAuto, each), !each.by_name_only);
  }
  EXPECT_EQ(OnlyTransport(Transports(), TransportChoice::kAuto), nullptr);
  EXPECT_TRUE(CheckTransport(Transports(), TransportChoice::kAuto).ok());
  const TransportList first = Transports().first(1);
  EXPECT_EQ(CheckTransport(first, static_cast<TransportChoice>(2)).code(), Code::kInvalidArgument);
}

TEST(TransportsTest, WhatSendsInClearIsNotUsedWhereEncryptionIsRequired) {
  for (size_t i = 0; i < Transports().size(); ++i) {
    const TransportInfo& selected = *Transports()[i];
    TransportOptions options;
    options.transport = static_cast<TransportChoice>(i + 1);
    EXPECT_TRUE(Allows(FilterOf(Transports(), options), selected));
    EXPECT_EQ(WhyNotSelected(Transports(), options), "");
    options.encrypt = Encryption::kRequired;
    const TransportFilter filter = FilterOf(Transports(), options);
    EXPECT_EQ(Allows(filter, selected), !selected.in_clear);
    EXPECT_EQ(WhyNotSelected(Transports(), options).empty(), !selected.in_clear);
    for (const TransportInfo* each : Transports()) EXPECT_FALSE(each->in_clear && Allows(filter, *each));
    EXPECT_TRUE(!selected.in_clear || Allows(filter, *FindTransport(Transports(), "tcp")));
  }
  TransportInfo by_itself = *FindTransport(Transports(), "verbs");
  by_itself.by_name_only = false;
  TransportFilter filter;
  EXPECT_TRUE(Allows(filter, by_itself));
  filter.in_clear = false;
  EXPECT_FALSE(Allows(filter, by_itself));
}

TEST(TransportsTest, TheDocumentsNameThem) {
  for (const char* path : {"docs/tuning.md", "README.md"}) {
    std::ifstream document(path);
    ASSERT_TRUE(document.good()) << path;
    const std::string text(std::istreambuf_iterator<char>(document), {});
    for (const TransportInfo* each : Transports()) {
      EXPECT_NE(text.find(std::string("`") + each->name + "`"), std::string::npos) << path << " lacks " << each->name;
    }
  }
}

TEST(SelectTest, ThePreferredOfThoseThatBothHaveIsTaken) {
  TransportInfo near{};
  near.name = "near";
  near.same_host_only = true;
  TransportInfo far{};
  far.name = "far";
  const TransportInfo* const list[] = {&near, &far};
  const std::vector<std::string> both = {"a", "b"};
  const std::vector<std::string> far_only = {"", "b"};
  int index = -1;
  ASSERT_TRUE(SelectTransport(list, {0, "x", both}, {1, "x", both}, &index).ok());
  EXPECT_EQ(index, 0);
  ASSERT_TRUE(SelectTransport(list, {0, "x", both}, {1, "y", both}, &index).ok());
  EXPECT_EQ(index, 1);
  ASSERT_TRUE(SelectTransport(list, {0, "x", far_only}, {1, "x", both}, &index).ok());
  EXPECT_EQ(index, 1);
  const std::vector<std::string> near_only = {"a", ""};
  const Status none = SelectTransport(list, {0, "x", near_only}, {1, "y", both}, &index);
  EXPECT_EQ(none.code(), Code::kUnsupported);
  EXPECT_EQ(none.message(),
            "no transport connects rank 0 and rank 1: near needs one host; far is off at rank 0; check "
            "ANNULUS_TRANSPORT");
}

}  // namespace
}  // namespace annulus
