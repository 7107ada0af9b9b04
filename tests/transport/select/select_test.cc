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
    ASSERT_EQ(each->over_stream_memory == nullptr, each->over_stream == nullptr) << each->name;
    if (each->over_stream != nullptr) {
      EXPECT_GE(each->over_stream_memory(small), 4 * small.slot_bytes) << each->name;
    }
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
    EXPECT_TRUE(Allows(TransportChoice::kAuto, each));
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
  TransportOptions any;
  EXPECT_EQ(WhyNotSelected(Transports(), any), "");
  any.encrypt = Encryption::kRequired;
  EXPECT_EQ(WhyNotSelected(Transports(), any), "verbs is not used: it sends in clear, and ANNULUS_ENCRYPT is required");
  for (const TransportInfo* each : Transports()) EXPECT_EQ(Allows(FilterOf(Transports(), any), *each), !each->in_clear);
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

// A transport over cards, whose addresses are their networks, before one that reaches everybody.
class NetworksTest : public ::testing::Test {
 protected:
  NetworksTest() {
    card_.name = "card";
    card_.networks = [](std::string_view address) { return address; };
    wire_.name = "wire";
  }
  // What both ends choose, and why none before it; addresses of the card and of the wire.
  std::string Choice(const std::vector<std::string>& left, const std::vector<std::string>& right) {
    const TransportInfo* const list[] = {&card_, &wire_};
    const std::vector<std::string> reasons = {"no card", ""};
    std::string told[2];
    int index[2] = {-1, -1};
    const SelectEnd ends[] = {{0, "x", left, left[0].empty() ? reasons : none_},
                              {1, "y", right, right[0].empty() ? reasons : none_}};
    for (const int side : {0, 1})
      EXPECT_TRUE(SelectTransport(list, ends[side], ends[1 - side], &index[side], &told[side]).ok());
    EXPECT_EQ(index[0], index[1]) << "the ends do not agree";
    return std::string(list[index[0]]->name) + (told[0].empty() ? "" : ": " + told[0]);
  }

  TransportInfo card_{};
  TransportInfo wire_{};
  const std::vector<std::string> none_ = {"", ""};
};

TEST_F(NetworksTest, TheBetterOneIsTakenWhereBothEndsAreInOneNetwork) {
  EXPECT_EQ(Choice({"net 1", "w"}, {"net 1", "w"}), "card");
  EXPECT_EQ(Choice({"net 1", "w"}, {"net 2", "w"}), "wire: card may not reach: rank 0 is in net 1, rank 1 is in net 2");
  EXPECT_EQ(Choice({"net 1", "w"}, {"", "w"}), "wire: card is not usable at rank 1: no card");
}

TEST_F(NetworksTest, OneCommonNetworkOfSeveralIsEnough) {
  EXPECT_EQ(Choice({"net 1, net 2", "w"}, {"net 3, net 2", "w"}), "card");
  EXPECT_EQ(Choice({"net 1, net 2", "w"}, {"net 2", "w"}), "card");
  EXPECT_EQ(Choice({"net 1, net 2", "w"}, {"net 12", "w"}),
            "wire: card may not reach: rank 0 is in net 1, net 2, rank 1 is in net 12");
}

TEST_F(NetworksTest, WhatMayNotReachIsTriedWhereThereIsNoOther) {
  EXPECT_EQ(Choice({"net 1", ""}, {"net 2", ""}), "card");
  EXPECT_EQ(Choice({"net 1", "w"}, {"net 2", ""}), "card");
}

}  // namespace
}  // namespace annulus
