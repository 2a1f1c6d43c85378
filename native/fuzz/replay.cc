/* Runs the harness on a corpus: on a file with an input a line, in hexadecimal digits; what follows a # is a remark. For the
 * libraries as they are built for use. */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "infiniop.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    std::ifstream file(argc == 2 ? argv[1] : "");
    long inputs = 0;
    for (std::string line; std::getline(file, line);) {
        line.erase(std::min(line.find_first_of(" #"), line.size()));
        if (line.empty()) continue;
        std::vector<uint8_t> input;
        for (size_t i = 0; i + 1 < line.size(); i += 2)
            input.push_back(static_cast<uint8_t>(std::strtoul(line.substr(i, 2).c_str(), nullptr, 16)));
        std::fprintf(stderr, "%s\n", line.c_str()); // the last is the one that failed
        LLVMFuzzerTestOneInput(input.data(), input.size());
        ++inputs;
    }
    const char *isa = "";
    infiniopGetCpuIsa(&isa);
    std::printf("%s %ld\n", isa, inputs);
    return inputs > 0 ? 0 : 1;
}
