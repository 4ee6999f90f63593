"""The jobs that record.py records. Each takes torch, a random number generator and a number of steps."""

KIB = 1 << 10
WIDTH, LAYERS, VOCABULARY = 512, 6, 4096


def encoder(torch):
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        torch.nn.Linear(WIDTH, VOCABULARY),
    ).cuda()


def transformer(torch, draw, steps):
    """Trains a transformer with AdamW; batch and length are random in each step."""
    model = encoder(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        shape = (draw.randint(4, 16), draw.randint(64, 1024))
        tokens = torch.randint(VOCABULARY, shape, device="cuda")
        labels = torch.randint(VOCABULARY, shape, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def cnn(torch, draw, steps):
    """Trains a convolutional network with momentum; the side of the images is random in each step."""
    layers, channels = [], 3
    for _ in range(8):
        layers += [torch.nn.Conv2d(channels, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        channels = 64
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        side = draw.randint(96, 224)
        images = torch.randn(32, 3, side, side, device="cuda")
        labels = torch.randint(10, (32,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def cache(torch, draw, steps):
    """Keeps up to 400 blocks of 1 KiB to 64 MiB, log-uniform, and drops random ones."""
    live = []
    for _ in range(steps):
        if len(live) < 400 and (not live or draw.random() < 0.6):
            live.append(torch.empty(int(KIB * 2 ** draw.uniform(0, 16)), dtype=torch.uint8, device="cuda"))
        else:
            live[draw.randrange(len(live))] = live[-1]
            live.pop()


def streams(torch, draw, steps):
    """Up to 200 blocks of 0.5 KiB to 16 MiB on 8 streams, a fifth of them used on a second stream."""
    all_streams = [torch.cuda.Stream() for _ in range(8)]
    live = []
    for _ in range(steps):
        if len(live) == 200 or live and draw.random() >= 0.6:
            live[draw.randrange(len(live))] = live[-1]
            live.pop()
            continue
        own, other = draw.sample(all_streams, 2)
        with torch.cuda.stream(own):
            block = torch.empty(int(KIB / 2 * 2 ** draw.uniform(0, 15)), dtype=torch.uint8, device="cuda")
            block.zero_()
        if draw.random() < 0.2:
            other.wait_stream(own)
            with torch.cuda.stream(other):
                block.add_(1)
            block.record_stream(other)
        live.append(block)


def inference(torch, draw, steps):
    """Runs a transformer forwards; batch and length are random in each step."""
    model = encoder(torch).eval()
    with torch.no_grad():
        for _ in range(steps):
            shape = (draw.randint(1, 32), draw.randint(16, 512))
            model(torch.randint(VOCABULARY, shape, device="cuda")).argmax(-1)


# name -> the job, and the number of steps whose trace has about record.MAX_BYTES
JOBS = {
    "transformer": (transformer, 30),
    "cnn": (cnn, 80),
    "cache": (cache, 12000),
    "streams": (streams, 12000),
    "inference": (inference, 120),
}
