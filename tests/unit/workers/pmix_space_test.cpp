// SPDX-License-Identifier: MIT
// Against functions that do what libpmix does; tests/launch asks the real one.
#include "railyard/workers/detail/pmix_space.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <cstring>
#include <future>
#include <map>

#if __has_include(<pmix.h>)
#include <pmix.h>
#endif

using namespace workers_test;
using Catch::ContainsSubstring;
using ry::detail::PmixFunctions;
using ry::detail::PmixInfo;
using ry::detail::PmixProcess;
using ry::detail::PmixSpace;
using ry::detail::PmixValue;
using ry::detail::SpaceError;

#if __has_include(<pmix.h>)
static_assert(sizeof(PmixProcess) == sizeof(pmix_proc_t) && offsetof(PmixProcess, rank) == offsetof(pmix_proc_t, rank));
static_assert(sizeof(PmixValue) >= sizeof(pmix_value_t) && offsetof(PmixValue, text) == offsetof(pmix_value_t, data));
static_assert(offsetof(PmixInfo, flags) == offsetof(pmix_info_t, flags));
static_assert(offsetof(PmixInfo, value) == offsetof(pmix_info_t, value));
static_assert(PMIX_BOOL == PmixValue::boolean && PMIX_STRING == PmixValue::string && PMIX_INT == PmixValue::integer);
static_assert(PMIX_SUCCESS == PmixFunctions::success && PMIX_GLOBAL == PmixFunctions::global);
static_assert(PMIX_RANK_WILDCARD == UINT32_MAX - 1);
#endif

namespace {

// What a libpmix without other processes would hold.
struct FakePmix {
  std::map<std::string, std::string> values{};
  int num_begun = 0;
  int num_ended = 0;
  bool is_committed = false;
  bool refuses = false;
  PmixFunctions::Done done = nullptr;
  void* data = nullptr;
};
FakePmix* fake_pmix = nullptr;

PmixFunctions fake_functions(FakePmix& fake) {
  fake_pmix = &fake;
  PmixFunctions functions;
  functions.init = [](PmixProcess* own, PmixInfo*, std::size_t) {
    if (fake_pmix->refuses) return -25;
    ++fake_pmix->num_begun;
    std::strcpy(own->job, "job");
    own->rank = 1;
    return 0;
  };
  functions.finalize = [](const PmixInfo*, std::size_t) {
    ++fake_pmix->num_ended;
    return 0;
  };
  functions.put = [](std::uint8_t scope, const char* key, PmixValue* value) {
    if (scope != PmixFunctions::global || value->type != PmixValue::string) return -27;
    fake_pmix->values[std::string{key} + "@1"] = value->text;
    return 0;
  };
  functions.commit = [] {
    fake_pmix->is_committed = true;
    return 0;
  };
  functions.fence = [](const PmixProcess* who, std::size_t num, const PmixInfo* options, std::size_t num_options,
                       PmixFunctions::Done done, void* data) {
    const bool is_right = num == 1 && std::string{"job"} == who->job && who->rank == UINT32_MAX - 1 &&
                          num_options == 1 && std::string{"pmix.collect"} == options->key && options->value.flag &&
                          fake_pmix->is_committed;
    if (!is_right) return -27;
    fake_pmix->done = done;
    fake_pmix->data = data;
    return 0;
  };
  functions.get = [](const PmixProcess* who, const char* key, const PmixInfo*, std::size_t, PmixValue** found) {
    const auto entry = fake_pmix->values.find(std::string{key} + "@" + std::to_string(who->rank));
    if (entry == fake_pmix->values.end()) return -46;
    *found = static_cast<PmixValue*>(std::calloc(1, sizeof(PmixValue)));
    (*found)->type = PmixValue::string;
    (*found)->text = ::strdup(entry->second.c_str());
    return 0;
  };
  functions.explain = [](int) { return "PMIX-ERROR"; };
  return functions;
}

}  // namespace

TEST_CASE("PmixSpace: puts, meets and gets, and tells the launcher that it has done") {
  FakePmix fake;
  {
    PmixSpace space{1, fake_functions(fake)};
    space.put("key", "value", soon());
    space.come_to_fence(soon());
    CHECK_FALSE(space.wait_at_fence(ry::Deadline::after(20ms)));
    auto others = std::async(std::launch::async, [&] { fake.done(0, fake.data); });
    CHECK(space.wait_at_fence(soon()));
    CHECK(space.get(1, "key", soon()) == "value");
    CHECK_FALSE(space.get(0, "key", soon()));
    space.leave();
  }
  CHECK(fake.num_begun == 1);
  CHECK(fake.num_ended == 1);
}

TEST_CASE("PmixSpace: says what has failed") {
  FakePmix fake;
  CHECK_THROWS_WITH((PmixSpace{0, fake_functions(fake)}), ContainsSubstring("calls this process 1"));
  CHECK(fake.num_ended == 1);
  fake.refuses = true;
  CHECK_THROWS_WITH((PmixSpace{1, fake_functions(fake)}),
                    ContainsSubstring("PMIx_Init") && ContainsSubstring("PMIX-ERROR"));
  CHECK_THROWS_WITH(PmixFunctions::load("libthere-is-none.so"), ContainsSubstring("cannot be loaded"));
  CHECK_THROWS_WITH(PmixFunctions::load("libm.so.6"), ContainsSubstring("no function PMIx_Init"));
}

TEST_CASE("PmixSpace: a fence that ends when nobody waits any more does no harm") {
  FakePmix fake;
  {
    PmixSpace space{1, fake_functions(fake)};
    space.come_to_fence(soon());
    CHECK_FALSE(space.wait_at_fence(ry::Deadline::after(1ms)));
  }
  fake.done(0, fake.data);
  PmixSpace space{1, fake_functions(fake)};
  space.come_to_fence(soon());
  fake.done(-24, fake.data);
  CHECK_THROWS_AS(space.wait_at_fence(soon()), SpaceError);
}
