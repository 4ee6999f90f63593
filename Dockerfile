# Trains on the GPU, with NVIDIA's container toolkit; runs and MNIST stay in volume mlpool:
#
#   docker build -t mlpool . && docker run --rm --gpus all -v mlpool:/home/ubuntu mlpool
FROM golang:1.26-bookworm AS go

FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS build
COPY --from=go /usr/local/go /usr/local/go
ENV PATH=/usr/local/go/bin:$PATH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG CUDA_ARCH=all-major
RUN make build CUDA=1 CUDA_ARCH="$CUDA_ARCH"

FROM ubuntu:24.04
COPY --from=go /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/build/train /usr/local/bin/
COPY configs/*.toml /configs/
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER ubuntu
WORKDIR /home/ubuntu
ENTRYPOINT ["train"]
CMD ["/configs/mnist.toml"]
