"""Training schemas, first part: arts, schools, shops, sports and food."""

from __future__ import annotations

from tunesmith.demo.tables import Domain, amount, category, label, link, measure, table, year

ARTS_AND_LIFE: tuple[Domain, ...] = (
    Domain(
        "concerts",
        (
            table(
                "singer",
                name=label(
                    "Ava Stone, Ben Ruiz, Carla Moss, Dan Okoye, Eva Lind, Finn Gray, Gita Rao, "
                    "Hugo Blanc, Iris Park, Jon Vega"
                ),
                country=category("France, Japan, Brazil"),
                age=measure(19, 68),
            ),
            table(
                "song",
                title=label(
                    "Blue Train, Night Sky, Cold Coffee, Paper Boats, Red Shoes, Silent Street, "
                    "Gold Dust, Last Dance, Open Road, Slow Fire, Home Again, Falling Leaves"
                ),
                genre=category("pop, rock, jazz, folk"),
                length=amount(121, 390),
                singer_id=link("singer"),
            ),
        ),
    ),
    Domain(
        "schools",
        (
            table(
                "teacher",
                name=label(
                    "Mr Adler, Ms Brown, Mr Castle, Ms Drake, Mr Evans, Ms Fuller, Mr Grant, Ms "
                    "Hobbs, Mr Irwin"
                ),
                subject=category("math, history, biology"),
                salary=amount(2100, 5200),
                age=measure(24, 64),
            ),
            table(
                "course",
                title=label(
                    "Algebra, World Wars, Cells, Geometry, Ancient Rome, Genetics, Statistics, "
                    "Revolutions, Botany, Logic, Empires"
                ),
                level=category("beginner, intermediate, advanced"),
                duration=amount(10, 90),
                teacher_id=link("teacher"),
            ),
        ),
    ),
    Domain(
        "library",
        (
            table(
                "author",
                name=label(
                    "Ada Flint, Boris Hale, Clara Yuen, Derek Shaw, Elena Popa, Frank Otis, "
                    "Grace Lyle, Henry Dahl"
                ),
                nationality=category("British, Chinese, Romanian"),
                birth_year=year(1901, 1985),
            ),
            table(
                "book",
                title=label(
                    "The Salt Road, Empty Rooms, A Winter Tale, The Clockmaker, Dust and Iron, "
                    "The Orchard, Northern Lights, Small Hours, The Glass Key, Lost Maps, Deep "
                    "Water, The Ferry"
                ),
                genre=category("mystery, romance, fantasy"),
                price=amount(5, 48),
                length=measure(110, 720),
                author_id=link("author"),
            ),
        ),
    ),
    Domain(
        "hospitals",
        (
            table(
                "doctor",
                name=label(
                    "Dr Allen, Dr Bauer, Dr Chopra, Dr Diaz, Dr Engel, Dr Farouk, Dr Goto, Dr "
                    "Hansen"
                ),
                specialty=category("cardiology, neurology, surgery"),
                salary=amount(5200, 12900),
            ),
            table(
                "patient",
                name=label(
                    "Amy Ford, Bill Nash, Cora Lane, Doug West, Edna Cole, Fred Hunt, Gail "
                    "Page, Hank Bell, Ivy Rose, Jim Wade, Kay Todd, Lou Mack"
                ),
                city=category("Austin, Denver, Boston, Miami"),
                age=measure(3, 91),
                doctor_id=link("doctor"),
            ),
        ),
    ),
    Domain(
        "airports",
        (
            table(
                "airport",
                name=label(
                    "Eastfield, Lakeside, Northgate, Palmview, Queensport, Redhill, Southbank, "
                    "Westmoor"
                ),
                country=category("Canada, Mexico, Cuba"),
                capacity=amount(120, 990),
            ),
            table(
                "flight",
                code=label(
                    "AB101, AB205, CD310, CD412, EF518, EF623, GH730, GH845, JK951, JK960, "
                    "LM117, LM233"
                ),
                airline=category("Skyway, Jetline, Airmax"),
                distance=amount(180, 4900),
                price=measure(40, 890),
                airport_id=link("airport"),
            ),
        ),
    ),
    Domain(
        "shopping",
        (
            table(
                "customer",
                name=label(
                    "Alma Reyes, Bob Tanner, Cathy Fox, Dean Wolf, Elly Short, Flora Mann, Greg "
                    "Olsen, Helga Brandt, Ian Marsh, Jane Cook"
                ),
                city=category("Paris, Berlin, Madrid"),
                income=amount(1200, 7900),
                age=measure(18, 80),
            ),
            table(
                "purchase",
                item=label(
                    "desk lamp, office chair, coffee mug, steel pan, wool rug, wall clock, tea "
                    "kettle, bath towel, glass vase, picture frame, door mat, bread box, soup "
                    "bowl"
                ),
                category=category("kitchen, furniture, decor"),
                price=amount(3, 260),
                customer_id=link("customer"),
            ),
        ),
    ),
    Domain(
        "zoo",
        (
            table(
                "keeper",
                name=label(
                    "Arlo Finch, Bree Lamb, Cody Hart, Dina Crane, Earl Fox, Faye Drake, Glen "
                    "Wolfe, Hope Swan"
                ),
                shift=category("morning, evening, night"),
                age=measure(20, 62),
            ),
            table(
                "animal",
                name=label(
                    "Zuri, Milo, Koda, Nala, Rex, Luna, Simba, Tiko, Bongo, Kiki, Rajah, Tembo, "
                    "Misha"
                ),
                habitat=category("savanna, jungle, forest, desert"),
                weight=amount(8, 420),
                keeper_id=link("keeper"),
            ),
        ),
    ),
    Domain(
        "cinema",
        (
            table(
                "director",
                name=label(
                    "Alex Roth, Bianca Neri, Carl Holm, Diane Fay, Emil Kraus, Fiona Byrne, "
                    "Goran Ilic, Helen Zhou"
                ),
                country=category("Italy, Ireland, Germany"),
                age=measure(29, 79),
            ),
            table(
                "movie",
                title=label(
                    "The Bridge, Cold Harbor, Seven Doors, Moonrise, The Heist, Green Valley, "
                    "Lost Signal, The Witness, Iron Sky, After Dark, Silver Coin"
                ),
                genre=category("drama, comedy, thriller"),
                budget=amount(2, 190),
                release_year=year(1975, 2022),
                director_id=link("director"),
            ),
            table(
                "actor",
                name=label(
                    "Adam Clay, Beth Nolan, Cyrus Webb, Dora Finn, Erik Lund, Flora Kent, Gabe "
                    "Stone, Holly Marsh, Isaac Ward"
                ),
                nationality=category("American, Australian, Swedish"),
                salary=amount(11, 95),
                movie_id=link("movie"),
            ),
        ),
    ),
    Domain(
        "football",
        (
            table(
                "team",
                name=label(
                    "Rovers, United, Athletic, Wanderers, Rangers, City Lions, Red Stars, "
                    "Harbor Town"
                ),
                league=category("Premier, Second, Regional"),
                budget=amount(14, 480),
            ),
            table(
                "player",
                name=label(
                    "Ali Kaya, Bruno Dias, Cole Hart, Dario Conte, Eric Boateng, Felix Braun, "
                    "Gio Ramos, Henrik Dahl, Ivo Maric, Joel Cruz, Kofi Mensah, Lars Holm"
                ),
                position=category("goalkeeper, defender, striker"),
                salary=amount(20, 310),
                height=measure(165, 204),
                team_id=link("team"),
            ),
        ),
    ),
    Domain(
        "company",
        (
            table(
                "department",
                name=label(
                    "Sales, Finance, Research, Marketing, Support, Legal, Logistics, Design"
                ),
                building=category("Tower A, Tower B, Annex"),
                budget=amount(35, 900),
            ),
            table(
                "employee",
                name=label(
                    "Ana Lopez, Brad King, Cindy Moore, Derek Hill, Emma Stein, Fabian Roy, "
                    "Gloria Mills, Harry Boone, Irene Katz, Jake Owens, Kim Tran, Leo Fischer"
                ),
                job=category("manager, analyst, clerk"),
                salary=amount(2300, 9100),
                hire_year=year(1994, 2023),
                department_id=link("department"),
            ),
        ),
    ),
    Domain(
        "museums",
        (
            table(
                "museum",
                name=label(
                    "City Gallery, Royal Museum, Modern House, Art Palace, Old Mint, Harbor "
                    "Museum, Castle Gallery, Garden Museum"
                ),
                city=category("Vienna, Prague, Munich"),
                fee=amount(4, 29),
            ),
            table(
                "painting",
                title=label(
                    "Sunset Bay, Girl in Green, The Mill, Winter Field, Two Boats, The Harvest, "
                    "Stormy Sea, White Horse, Still Life, Night Market, The Garden"
                ),
                style=category("realism, cubism, baroque"),
                creation_year=year(1610, 1955),
                value=amount(12, 870),
                museum_id=link("museum"),
            ),
        ),
    ),
    Domain(
        "restaurants",
        (
            table(
                "restaurant",
                name=label(
                    "Golden Fork, Little Napoli, Sakura, El Patio, Blue Door, The Anchor, Spice "
                    "Route, Corner Grill, Green Table"
                ),
                cuisine=category("Italian, Mexican, Indian"),
                rating=measure(2.5, 5.0),
            ),
            table(
                "dish",
                name=label(
                    "Tomato Soup, Grilled Salmon, Beef Stew, Apple Crumble, Mushroom Pasta, "
                    "Caesar Salad, Lamb Curry, Rice Pudding, Fish Tacos, Onion Tart, Chicken "
                    "Wrap, Lentil Stew"
                ),
                course=category("starter, main, dessert"),
                price=amount(4, 39),
                restaurant_id=link("restaurant"),
            ),
        ),
    ),
    Domain(
        "farms",
        (
            table(
                "farm",
                name=label(
                    "Sunny Acres, Oak Hollow, Red Barn, Willow Creek, Stone Field, Meadow View, "
                    "Hilltop, Long Lane"
                ),
                region=category("Kent, Devon, Essex"),
                area=amount(22, 480),
            ),
            table(
                "crop",
                name=label(
                    "wheat, barley, corn, potatoes, carrots, onions, beans, lettuce, rye, oats"
                ),
                season=category("spring, summer, autumn"),
                output=amount(11, 350),
                cost=amount(9, 99),
                farm_id=link("farm"),
            ),
        ),
    ),
)
