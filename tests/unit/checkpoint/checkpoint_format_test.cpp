// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/checkpoint.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/places.hpp"

#include <cmath>
#include <limits>

using namespace railyard_test;

TEST_CASE("Checkpoint: one of format 1, written by release 0.1, loads with all it holds") {
  const fs::path path = in_sources("tests/data/checkpoint-format-1");
  const auto checkpoint = ry::Checkpoint::open(path);
  checkpoint.verify();
  const auto& manifest = checkpoint.manifest();
  CHECK(manifest.format == 1);
  CHECK(manifest.id == "f1");
  CHECK(manifest.created_at == "2026-11-28T08:00:00Z");
  CHECK(manifest.world_size == 2);
  CHECK(manifest.step == 100);
  CHECK(manifest.samples == 6400);
  CHECK(manifest.epoch == 2);
  CHECK(manifest.report == 5);
  CHECK(manifest.attempt == 1);
  CHECK(manifest.generation == 3);
  CHECK(manifest.metrics == ry::Metrics{{"loss", std::numeric_limits<double>::infinity()}, {"accuracy", 0.1}});
  CHECK(manifest.environment == ry::NamedValues{{"railyard", "0.1.0"}, {"threads", 2}});
  CHECK(checkpoint.parts() == std::vector<std::string>{"loss", "net", "optimizer", "random"});
  CHECK(read_file(checkpoint.files().at(0)) == "ant bee cat");

  const auto net = checkpoint.load("net", 0);
  CHECK(net->values == ry::NamedValues{{"trained", true}});
  CHECK(elements_of<float>(*net->find_tensor("layer.0.weight")) ==
        std::vector<float>{1.5F, -0.0F, 3, 4, 5, std::numeric_limits<float>::denorm_min() * 2});
  CHECK(net->find_tensor("layer.0.weight")->shape == std::vector<std::int64_t>{2, 3});
  CHECK(net->find_tensor("layer.0.steps")->shape.empty());
  CHECK(elements_of<std::int64_t>(*net->find_tensor("layer.0.steps")) == std::vector<std::int64_t>{7});
  CHECK(elements_of<ry::BFloat16>(*net->find_tensor("half")) ==
        std::vector<ry::BFloat16>{ry::BFloat16{1.5F}, ry::BFloat16{-2.0F}});
  CHECK(net->find_tensor("empty")->shape == std::vector<std::int64_t>{0, 4});

  const auto optimizer = checkpoint.load("optimizer", 0);
  CHECK(optimizer->values == ry::NamedValues{{"lr", 0.1}, {"steps", 123456789012345}});
  CHECK(elements_of<double>(*optimizer->find_tensor("momentum")) == std::vector<double>{0, 1, 2, 3, 4});

  const auto random = checkpoint.load("random", 1);
  CHECK(random->is_own);
  CHECK(random->values == ry::NamedValues{{"seed", 41}, {"engine", std::string{"\xFF\0x", 3}}});
  CHECK(elements_of<std::uint8_t>(*random->find_tensor("state")) == std::vector<std::uint8_t>{1, 255});

  const auto loss = checkpoint.load("loss", 0);
  CHECK(std::isnan(loss->at("sum").as<double>()));
  CHECK(loss->at("note") == ry::Value{"caf\xC3\xA9 \"quoted\"\n"});
}
