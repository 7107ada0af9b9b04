// Parse: numbers and addresses as text.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>

namespace annulus {

// Parses all of `text` as a decimal number; false when it is not one or does not fit.
bool ParseNumber(const std::string& text, int64_t* number);

// Splits "host:port" or "[v6]:port". False when that is not the form, or the port is not from 1 to 65535.
bool ParseAddress(const std::string& text, std::string* host, int* port);

// The opposite: puts an IPv6 address in brackets.
std::string FormatAddress(const std::string& host, int port);

}  // namespace annulus
