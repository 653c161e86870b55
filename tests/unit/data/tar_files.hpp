// SPDX-License-Identifier: MIT
// Writes tar archives for tests.
#pragma once

#include <cstdint>
#include <string>

namespace tar_files {

inline std::string octal(std::uint64_t number, std::size_t digits) {
  std::string text(digits, '0');
  for (; number > 0; number /= 8) text[--digits] = static_cast<char>('0' + number % 8);
  return text;
}

inline std::string tar_header(const std::string& name, std::uint64_t size, char type = '0',
                              const std::string& prefix = "") {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, octal(size, 11));
  header.replace(148, 8, "        ");
  header[156] = type;
  header.replace(257, 6, std::string{"ustar\0", 6});
  header.replace(345, prefix.size(), prefix);
  std::uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 7, octal(sum, 6) + '\0');
  return header;
}
inline std::string padded(std::string content) {
  content.resize((content.size() + 511) / 512 * 512);
  return content;
}
inline std::string tar_file(const std::string& name, const std::string& content, char type = '0',
                            const std::string& prefix = "") {
  return tar_header(name, content.size(), type, prefix) + padded(content);
}
inline const std::string tar_end(1024, '\0');

}  // namespace tar_files
