// SPDX-License-Identifier: MIT
// The digits of examples/data as a plain LibTorch dataset, for port_before.cpp and port_after.cpp. Nothing of Railyard.
#pragma once

#include <torch/torch.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

/// Holds images of 8 x 8 pixels from 0 to 1 and the digits they show: four fifths for training, the rest for
/// validation.
class Digits : public torch::data::Dataset<Digits> {
 public:
  enum class Part { training, validation };

  Digits(const std::string& path, Part part) {
    std::ifstream file{path};
    std::string line;
    if (!std::getline(file, line)) throw std::runtime_error("cannot read " + path);  // the header line
    for (std::size_t number = 0; std::getline(file, line); ++number) {
      if ((number % 5 == 4) != (part == Part::validation)) continue;
      std::istringstream fields{line};
      std::vector<float> values;
      for (std::string field; std::getline(fields, field, ',');) values.push_back(std::stof(field));
      const auto row = torch::tensor(values);
      images_.push_back((row.slice(0, 0, 64) / 16).view({1, 8, 8}));
      digits_.push_back(row[64].to(torch::kLong));
    }
  }

  torch::data::Example<> get(std::size_t index) override { return {images_.at(index), digits_.at(index)}; }
  torch::optional<std::size_t> size() const override { return images_.size(); }

 private:
  std::vector<torch::Tensor> images_{};
  std::vector<torch::Tensor> digits_{};
};
