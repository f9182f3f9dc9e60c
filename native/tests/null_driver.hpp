// What tests ask of null_driver.cpp.
#pragma once

#include <cstddef>

extern "C" {

void* null_stream();  // as a driver's handle
void null_stream_end(void* stream);
void null_synchronize(void* stream);  // waits until all its work is done
void null_delay(long ns);             // of each copy
long null_copies(bool pinned);        // that were begun, all or from pinned memory
long null_calls(const char* function);
std::size_t null_pinned();  // bytes
// This function fails with the code after so many calls; none does where it is empty.
void null_fail(const char* function, long after, int code);
void null_reset();
}
